"""Samples on their way are counted, and generator and verifier behave as if nobody counted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from overlap.core import Prompt, Request, Scored, Trajectory
from overlap.record import traffic as traffic_module
from overlap.record.traffic import BusyClock, Span, Traffic


def test_the_busy_clock_says_when_anything_was_open_and_cuts_what_still_is():
    clock = BusyClock()
    for at, change in ((1, clock.enter), (2, clock.enter), (3, clock.leave), (5, clock.leave), (7, clock.enter)):
        change(at)
    assert clock.pop_spans(8) == [(1, 5), (7, 8)]
    clock.leave(9)
    assert clock.pop_spans(10) == [(8, 9)]
    assert clock.pop_spans(11) == []


def test_the_busy_clock_leaves_out_the_time_in_which_what_is_open_stands_still():
    clock = BusyClock()
    for at, change in ((1, clock.enter), (2, clock.pause), (3, clock.enter), (4, clock.pause), (6, clock.resume)):
        change(at)
    assert clock.pop_spans(7) == [(1, 2), (6, 7)]
    for at, change in ((8, clock.pause), (9, clock.leave), (10, clock.leave), (11, clock.resume)):
        change(at)
    assert clock.pop_spans(12) == [(7, 8)]


class _Inner:
    def __init__(self) -> None:
        self.gate = asyncio.Event()

    async def generate(self, request: Request) -> Trajectory:
        await self.gate.wait()
        return Trajectory(request, (7,) * 4, (-0.1,) * 4, "x", "stop", (), 0.0, 1.0)

    async def score(self, trajectory: Trajectory) -> Scored:
        raise RuntimeError("verifier failed")

    async def sleep(self) -> None: ...

    async def wake(self, part: str) -> None: ...

    def pids(self) -> tuple[int, ...]:
        return (1, 2)


async def _watched() -> None:
    inner: Any = _Inner()
    seen: list[str] = []
    traffic = Traffic(seen.append)
    generator: Any = traffic.generator(inner)
    tasks = [asyncio.create_task(generator.generate(Request(0, k, Prompt("p", (1, 2))))) for k in range(2)]
    await asyncio.sleep(0)
    assert (traffic.generating, generator.pids()) == (2, (1, 2))
    inner.gate.set()
    trajectories = await asyncio.gather(*tasks)
    assert traffic.generating == 0
    assert len(traffic.pop_engine_spans()) == 1
    with pytest.raises(RuntimeError, match="verifier failed"):
        await traffic.verifier(inner).score(trajectories[0])
    assert traffic.verifying == 0
    assert seen == ["1 generating, 0 verifying", "0 generating, 0 verifying"]


def test_counting_what_passes_and_let_everything_else_through():
    asyncio.run(asyncio.wait_for(_watched(), 20))


async def _turns(move_to: Callable[[float], None]) -> list[Span]:
    inner, traffic = _Inner(), Traffic(lambda line: None)
    generator = traffic.generator(cast("Any", inner))
    task = asyncio.create_task(generator.generate(Request(0, 0, Prompt("p", (1, 2)))))
    await asyncio.sleep(0)
    for at, change in ((2, generator.sleep()), (3, generator.wake("weights")), (5, generator.wake("cache"))):
        move_to(at)
        await change
    move_to(6)
    inner.gate.set()
    await task
    return traffic.pop_engine_spans()


def test_an_engine_that_sleeps_is_not_busy_until_its_cache_wakes(monkeypatch):
    at = [1.0]
    monkeypatch.setattr(traffic_module, "time", SimpleNamespace(monotonic=lambda: at[0]))
    assert asyncio.run(_turns(lambda moment: at.__setitem__(0, moment))) == [(1, 2), (5, 6)]
