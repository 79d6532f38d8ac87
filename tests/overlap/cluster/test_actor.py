"""An actor whose driver ends before it has called it, or during a call that is long, does not stay for ever."""

from __future__ import annotations

import asyncio
import os
import pickle
import threading
from collections.abc import Callable

import pytest

from overlap.clock import VirtualLoop, now
from overlap.cluster import agent as actor_module
from overlap.cluster.agent import NodeActor
from overlap.cluster.nodes import GRACE_S, HELLO_S, ORPHAN_S

Make = Callable[[], NodeActor]


class Thing:
    """What an actor has."""

    def __init__(self) -> None:
        self.closed = 0

    async def sleep(self, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "slept"

    async def close(self) -> None:
        self.closed += 1


class Ended(BaseException):
    """In place of the end of this process."""


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Make:
    def end(code: int) -> None:
        raise Ended

    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr(actor_module, "forget_ray", lambda: True)
    monkeypatch.setattr(actor_module, "as_before_ray", lambda: None)
    return lambda: NodeActor(pickle.dumps(Thing), 1.0)


@pytest.mark.parametrize("called", [False, True])
def test_an_actor_watches_from_the_moment_in_which_it_is_made(
    make: Make, monkeypatch: pytest.MonkeyPatch, called: bool
) -> None:
    ends: list[int] = []
    monkeypatch.setattr(os, "_exit", ends.append)
    monkeypatch.setattr(actor_module, "ORPHAN_S", 0.1)
    actor = make()
    if called:
        asyncio.run(actor.identity())
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.join()
    assert ends == ([] if called else [1])


async def orphaned(actor: NodeActor) -> float:
    """When its process ended, s."""
    assert actor._watching is not None
    await asyncio.wait([actor._watching])
    assert isinstance(actor._watching.exception(), Ended)
    assert actor._thing.closed == 1
    return now()


@pytest.mark.virtual
async def test_an_actor_that_is_called_again_and_again_stays_and_one_that_is_not_ends(make: Make) -> None:
    actor = make()
    assert (await actor.identity())[0]
    for _ in range(100):
        assert await actor.call("sleep", 1.0) == "slept"
    assert not actor._watching.done()  # type: ignore[union-attr]
    assert 100.0 + ORPHAN_S <= await orphaned(actor) <= 100.0 + 2 * ORPHAN_S


@pytest.mark.virtual
@pytest.mark.parametrize(("takes", "ends"), [(HELLO_S - 1.0, HELLO_S - 1.0 + ORPHAN_S), (1e6, HELLO_S)])
async def test_a_long_call_makes_no_orphan_but_one_without_an_end_does(make: Make, takes: float, ends: float) -> None:
    actor = make()
    await actor.identity()
    calls = asyncio.create_task(actor.call("sleep", takes))
    assert ends <= await orphaned(actor) <= ends + ORPHAN_S + 3 * GRACE_S
    calls.cancel()


@pytest.mark.virtual
async def test_an_actor_whose_machine_stood_still_is_no_orphan_if_it_is_called_then(make: Make) -> None:
    actor = make()
    await actor.identity()
    await asyncio.sleep(1.0)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    loop._clock.now += 2 * ORPHAN_S
    await asyncio.sleep(0.5)
    await actor.call("sleep", 0.0)
    await asyncio.sleep(10.0)
    assert not actor._watching.done()  # type: ignore[union-attr]
    actor._watching.cancel()  # type: ignore[union-attr]
