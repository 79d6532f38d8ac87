"""Sleeps that end together, none too early and none much later than it was to."""

from __future__ import annotations

import asyncio
import random

import pytest

from overlap.clock import now
from overlap.cluster.pacer import TICK_S, Pacer

pytestmark = pytest.mark.virtual


async def test_nobody_is_woken_early_or_more_than_a_tick_late_and_as_few_timers_are_set_as_there_are_ticks() -> None:
    rng, pacer, moments = random.Random(0), Pacer(), set[float]()

    async def sleep(seconds: float) -> None:
        due = now() + max(0.0, seconds)
        await pacer.sleep(seconds)
        assert due - 1e-9 <= now() <= due + TICK_S + 1e-9
        moments.add(now())

    await asyncio.gather(*(sleep(rng.uniform(-0.1, 1.0)) for _ in range(5000)))
    assert len(moments) <= 1.0 / TICK_S + 2
    assert not pacer._due


async def test_a_sleeper_that_is_cancelled_keeps_nobody_from_waking() -> None:
    pacer = Pacer()
    tasks = [asyncio.create_task(pacer.sleep(1.0)) for _ in range(3)]
    await asyncio.sleep(0.5)
    tasks[1].cancel()
    await asyncio.wait(tasks)
    assert [task.cancelled() for task in tasks] == [False, True, False]
