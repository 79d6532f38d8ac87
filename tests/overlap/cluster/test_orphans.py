"""An agent whose driver ends before it has called it, or while it says what it is, does not stay for ever."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from overlap.clock import now, run_virtual
from overlap.cluster.agent import Agent
from overlap.cluster.hosted import LONG_S, Hosted
from overlap.cluster.nodes import GRACE_S, HELLO_S, ORPHAN_S
from overlap.cluster.orphans import Greeted
from sandbox.core import Verdict

KINDS = {"RayAgent": "ray_members.RayAgent(lambda workers: Pool(), 1)", "RayHosted": "ray_hosts.RayHosted('engine')"}
MADE = """
import asyncio, sys, threading
from overlap.cluster import orphans, ray_hosts, ray_members
class Pool: workers = 1
orphans.Greeted.__init__.__defaults__ = 0.1, orphans.os._exit
async def hello():
    if sys.argv[1] == "called":
        try:
            await made.hello()
        except Exception:
            pass
made = {kind}
asyncio.run(hello())
threading.Event().wait(2)
"""


def test_who_was_called_is_not_ended_and_who_was_not_is() -> None:
    ended, stays = threading.Event(), threading.Event()
    Greeted(0.01, lambda code: ended.set())
    greeted = Greeted(0.5, lambda code: stays.set())
    greeted.called()
    assert ended.wait(20)
    greeted._timer.join(20)
    assert not stays.is_set()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("called", ["called", "not"])
def test_agents_watch_from_the_moment_in_which_they_are_made(kind: str, called: str) -> None:
    done = subprocess.run([sys.executable, "-c", MADE.replace("{kind}", KINDS[kind]), called], timeout=60)
    assert done.returncode == (0 if called == "called" else 1)


def test_an_agent_whose_driver_ends_while_it_opens_its_sandbox_is_an_orphan_and_not_before() -> None:
    class Hangs:
        async def __aenter__(self) -> Any:
            await asyncio.Event().wait()

        def pids(self) -> tuple[int, ...]:
            return ()

    async def main() -> None:
        agent = Agent(Hangs, 1)  # type: ignore[arg-type]
        opens = asyncio.create_task(agent.hello())
        await asyncio.sleep(0)
        await agent.orphaned()
        assert now() == pytest.approx(HELLO_S + ORPHAN_S + GRACE_S)
        opens.cancel()

    run_virtual(main())


class _Opens:
    """A pool that is open, and has judged, after a second."""

    async def __aenter__(self) -> Any:
        await asyncio.sleep(1.0)
        return self

    async def __aexit__(self, *exc_info: Any) -> None: ...

    async def judge(self, problem: Any, program: Any, *, turn: int = 0) -> Any:
        return SimpleNamespace(verdict=Verdict.AC, tier="A")

    def pids(self) -> tuple[int, ...]:
        return ()


def test_one_that_is_left_soon_after_a_call_that_might_have_been_long_does_not_wait_that_long() -> None:
    async def greeted() -> None:
        agent = Agent(_Opens, 1)  # type: ignore[arg-type]
        opens, alone = asyncio.create_task(agent.hello()), asyncio.create_task(agent.orphaned())
        await opens
        await alone
        assert now() <= 1.0 + ORPHAN_S + 3 * GRACE_S

    async def loaded() -> None:
        hosted = Hosted("engine")
        await asyncio.sleep(1.0)
        with hosted._long():
            alone = asyncio.create_task(hosted.orphaned())
            await asyncio.sleep(5.0)
        await alone
        assert 6.0 + ORPHAN_S <= now() <= 6.0 + ORPHAN_S + 3 * GRACE_S

    run_virtual(greeted())
    run_virtual(loaded())


def test_a_long_call_makes_no_orphan(monkeypatch: pytest.MonkeyPatch) -> None:
    async def slowly(work: Any, *args: Any) -> str:
        await asyncio.sleep(LONG_S - 1.0)
        return "digest"

    async def main() -> None:
        hosted = Hosted("engine")
        monkeypatch.setattr(asyncio, "to_thread", slowly)
        digests = asyncio.create_task(hosted.digest(Path()))
        await asyncio.sleep(0)
        await hosted.orphaned()
        assert digests.done()
        assert now() == pytest.approx(LONG_S - 1.0 + ORPHAN_S + GRACE_S, abs=GRACE_S + 0.1)

    run_virtual(main())
