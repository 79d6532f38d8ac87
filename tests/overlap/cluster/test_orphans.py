"""An agent whose driver ends before it has called it, or during a call that is long, does not stay for ever."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from overlap.clock import now
from overlap.cluster.hosted import LONG_S, Hosted
from overlap.cluster.nodes import GRACE_S, ORPHAN_S

AGENT, HOSTED = "ray_members.RayAgent(lambda workers: Pool(), 1)", "ray_hosts.RayHosted('engine')"
MADE = """
import asyncio, os, threading
from overlap.cluster import code_digest, orphans, ray_hosts, ray_members
class Pool: workers = 1
code_digest()  # takes long the first time
orphans.DriverWatch.__init__.__defaults__ = 0.1, os._exit
async def call(agents):
    for agent in agents:
        await agent.identity()
agents = [{agents}]
asyncio.run(call({called}))
threading.Event().wait(2)
"""


@pytest.mark.parametrize(
    ("agents", "called", "code"), [(AGENT, "[]", 1), (HOSTED, "[]", 1), (f"{AGENT}, {HOSTED}", "agents", 0)]
)
def test_agents_watch_from_the_moment_in_which_they_are_made(agents: str, called: str, code: int) -> None:
    program = MADE.replace("{agents}", agents).replace("{called}", called)
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == code


@pytest.mark.virtual
async def test_one_that_is_left_soon_after_a_call_that_might_have_been_long_does_not_wait_that_long() -> None:
    hosted = Hosted("engine")
    await asyncio.sleep(1.0)
    with hosted._long():
        alone = asyncio.create_task(hosted.orphaned())
        await asyncio.sleep(5.0)
    await alone
    assert 6.0 + ORPHAN_S <= now() <= 6.0 + ORPHAN_S + 3 * GRACE_S


@pytest.mark.virtual
async def test_a_long_call_makes_no_orphan(monkeypatch: pytest.MonkeyPatch) -> None:
    async def slowly(work: Any, *args: Any) -> str:
        await asyncio.sleep(LONG_S - 1.0)
        return "digest"

    hosted = Hosted("engine")
    monkeypatch.setattr(asyncio, "to_thread", slowly)
    digests = asyncio.create_task(hosted.digest(Path()))
    await asyncio.sleep(0)
    await hosted.orphaned()
    assert digests.done()
    assert now() == pytest.approx(LONG_S - 1.0 + ORPHAN_S + GRACE_S, abs=GRACE_S + 0.1)
