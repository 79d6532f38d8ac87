"""Places are given by turn, and none is lost."""

from __future__ import annotations

import asyncio

import pytest

from sandbox.pool.slots import Slots


def test_of_those_who_wait_the_lowest_turn_is_next_and_of_equals_the_first() -> None:
    async def scenario() -> list[str]:
        places, order, go = Slots(1), list[str](), asyncio.Event()

        async def one(name: str, turn: int) -> None:
            async with places.place(turn):
                order.append(name)
                await go.wait()

        async with asyncio.TaskGroup() as tasks:
            for name, turn in [("holder", 9), ("b", 2), ("c", 2), ("a", 1)]:
                tasks.create_task(one(name, turn))
                await asyncio.sleep(0)
            go.set()
        return order

    assert asyncio.run(scenario()) == ["holder", "a", "b", "c"]


def test_one_who_gives_up_waiting_takes_no_place_with_him() -> None:
    async def scenario() -> None:
        places = Slots(1)

        async def wait() -> None:
            async with places.place(0):
                raise AssertionError("it was cancelled before its turn")

        async with places.place(0):
            waiters = [asyncio.create_task(wait()) for _ in range(2)]
            await asyncio.sleep(0)
            waiters[0].cancel()
        waiters[1].cancel()  # its place is given and it has not run since
        for waiter in waiters:
            with pytest.raises(asyncio.CancelledError):
                await waiter
        async with asyncio.timeout(10), places.place(0):
            pass

    asyncio.run(scenario())
