"""The lag of the driver's event loop: a block weighs as much as the time that it took."""

from __future__ import annotations

import asyncio
import time

import pytest

from overlap.record.looplag import LagHistogram, LoopLag


def test_quantiles_of_lags_lie_where_the_lags_lie():
    histogram = LagHistogram()
    for k in range(1, 1001):
        histogram.add(k / 10)
    assert histogram.lag().p50_ms == pytest.approx(50, rel=0.06)
    histogram.add(1e9)
    assert histogram.lag().max_ms == 1e9  # exact, also beyond the last bucket
    assert histogram.lag().p99_ms == pytest.approx(99, rel=0.06)


def test_one_long_block_weighs_as_much_as_the_time_that_it_took():
    lag = LoopLag(interval_s=0.01)
    for _ in range(100):
        lag.observe(0.0)
    lag.observe(1.0)  # one second in two: half of all instants were blocked
    assert lag.run().max_ms == pytest.approx(1000)
    assert lag.run().p99_ms > 900


async def _block_the_loop() -> LoopLag:
    async with LoopLag(interval_s=0.001) as lag:
        await asyncio.sleep(0)  # the watcher goes to sleep
        asyncio.get_running_loop().call_soon(time.sleep, 0.05)
        await asyncio.sleep(0.01)  # ends behind the watcher's own sleep
    assert asyncio.all_tasks() == {asyncio.current_task()}
    return lag


def test_a_blocked_loop_is_seen_and_the_watcher_ends():
    assert asyncio.run(_block_the_loop()).run().max_ms >= 30
