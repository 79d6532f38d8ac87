"""The virtual clock: time passes when nothing else can."""

from __future__ import annotations

import asyncio

import pytest
from virtual_clock import Deadlock, run_virtual

from overlap.core.clock import PausableClock, now


def test_what_waits_for_nothing_is_a_deadlock_and_no_hang() -> None:
    async def scenario() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock, match="no timer is set"):
        run_virtual(scenario())


@pytest.mark.virtual
async def test_a_clock_that_is_paused_counts_no_time_and_wakes_nobody() -> None:
    clock, ends = PausableClock(), dict[float, float]()
    clock.resume()

    async def sleeper(seconds: float) -> None:
        await clock.sleep(seconds)
        ends[seconds] = now()

    tasks = [asyncio.create_task(sleeper(seconds)) for seconds in (1.0, 4.0, 40.0)]
    for _ in range(2):
        await asyncio.sleep(3.0)
        clock.pause()
        clock.pause()
        stood = clock.now()
        await asyncio.sleep(100.0)
        assert (clock.now(), clock.paused) == (stood, True)
        clock.resume()
    await asyncio.gather(*tasks)
    assert ends == {1.0: 1.0, 4.0: 104.0, 40.0: 240.0}
    assert clock.now() == 40.0
