"""A limited number of slots; the waiter with the lowest turn is next, and of equal turns the first."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Slots:
    """A semaphore whose waiters have turns. Belongs to the event loop in which it is used."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: list[tuple[tuple[float, ...], int, asyncio.Future[None]]] = []
        self._came = 0

    @asynccontextmanager
    async def place(self, *turn: float) -> AsyncIterator[None]:
        """Hold a slot. Waits while there is none; ``turn`` compares as a tuple."""
        if self._free:
            self._free -= 1
        else:
            await self._wait(turn)
        try:
            yield
        finally:
            self._hand_on()

    async def _wait(self, turn: tuple[float, ...]) -> None:
        self._came += 1
        place = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (turn, self._came, place))
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():  # the slot was given in the same moment
                self._hand_on()
            raise

    def _hand_on(self) -> None:
        while self._waiting:
            place = heapq.heappop(self._waiting)[2]
            if not place.done():
                place.set_result(None)
                return
        self._free += 1
