"""The lease bounds staleness by construction."""

from __future__ import annotations

import asyncio

import pytest

from overlap.config import load_config
from overlap.pipeline.window import LeaseWindow


def window_of(groups: int, staleness: int, steps: int = 100, first: int = 0) -> LeaseWindow:
    cfg = load_config(None, [f"rollout.groups_per_step={groups}", f"rollout.max_staleness={staleness}"])
    return LeaseWindow(cfg, steps, first)


async def taken(window: LeaseWindow) -> int | None:
    """A lease if one is free at once, else -1."""
    task = asyncio.create_task(window.take())
    for _ in range(3):
        await asyncio.sleep(0)
    if task.done():
        return task.result()
    task.cancel()
    return -1


async def take_all(window: LeaseWindow) -> list[int]:
    groups = []
    while (group := await taken(window)) not in (-1, None):
        groups.append(group)
    return groups


@pytest.mark.parametrize(("staleness", "capacity"), [(0, 4), (1, 8), (3, 16)])
def test_at_most_the_capacity_is_out(staleness: int, capacity: int) -> None:
    assert asyncio.run(take_all(window_of(4, staleness))) == list(range(capacity))


def test_weights_that_land_free_their_leases() -> None:
    async def scenario() -> None:
        window = window_of(2, 0)
        assert await take_all(window) == [0, 1]
        window.land([0, 1])
        assert await take_all(window) == [2, 3]

    asyncio.run(scenario())


def test_a_dropped_group_is_replaced_at_once() -> None:
    async def scenario() -> None:
        window = window_of(2, 0, steps=1)
        assert await take_all(window) == [0, 1]
        window.drop(0)
        assert await take_all(window) == [2]

    asyncio.run(scenario())


def test_a_waiting_taker_wakes_when_a_lease_comes_back() -> None:
    async def scenario() -> None:
        window = window_of(1, 0)
        await window.take()
        waiter = asyncio.create_task(window.take())
        await asyncio.sleep(0)
        assert not waiter.done()
        window.land([0])
        assert await asyncio.wait_for(waiter, 1) == 1

    asyncio.run(scenario())


def test_the_window_closes_when_all_groups_have_landed() -> None:
    async def scenario() -> None:
        window = window_of(2, 1, steps=1)
        assert await take_all(window) == [0, 1]
        window.land([0, 1])
        assert await asyncio.wait_for(window.take(), 1) is None

    asyncio.run(scenario())


def test_a_lease_cannot_come_back_twice() -> None:
    async def scenario() -> None:
        window = window_of(2, 0)
        await window.take()
        window.land([0])
        with pytest.raises(AssertionError, match="does not hold"):
            window.drop(0)

    asyncio.run(scenario())


def test_a_resumed_run_goes_on_counting() -> None:
    assert asyncio.run(take_all(window_of(2, 0, first=12))) == [12, 13]
