"""The lease bounds staleness by construction."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from overlap.config.load import load_config
from overlap.pipeline.window import LeaseWindow

pytestmark = pytest.mark.virtual


def window_of(groups: int, staleness: int, steps: int = 100) -> LeaseWindow:
    cfg = load_config(None, [f"rollout.groups_per_step={groups}", f"rollout.max_staleness={staleness}"])
    return LeaseWindow(cfg, steps)


async def take_all(window: LeaseWindow) -> list[int | None]:
    """What is free at once."""
    groups = []
    with contextlib.suppress(TimeoutError):
        while True:
            groups.append(await asyncio.wait_for(window.take(), 0.001))
    return groups


@pytest.mark.promise("staleness")
@pytest.mark.parametrize(("staleness", "capacity"), [(0, 4), (1, 8), (3, 16)])
async def test_at_most_the_capacity_is_out(staleness: int, capacity: int) -> None:
    assert await take_all(window_of(4, staleness)) == list(range(capacity))


@pytest.mark.promise("staleness")
async def test_leases_come_back_with_weights_that_land_or_with_a_dropped_group_and_wake_who_waits() -> None:
    window = window_of(2, 0)
    assert await take_all(window) == [0, 1]
    window.land([0])
    window.drop(1)
    assert await take_all(window) == [2, 3]
    waiter = asyncio.create_task(window.take())
    await asyncio.sleep(0)
    assert not waiter.done()
    window.land([2])
    assert await asyncio.wait_for(waiter, 1) == 4
    with pytest.raises(AssertionError, match="does not hold"):
        window.drop(2)
