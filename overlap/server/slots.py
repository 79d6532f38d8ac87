"""Slots in the engine, one per episode: it keeps its slot between two turns, for a bounded time.

an episode's turns ──▶ slot held ──▶ idle for idle_s ──▶ given up ──▶ the oldest episode that waits
                          ▲ └── next turn ◀── in time          │
                          └── waits again ◀── too late ◀───────┘
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from sandbox.pool.slots import Slots


class EpisodeSlot:
    """The slot of one episode. Of the episodes that wait, the lowest ``rank`` is next. Close it when that ends."""

    def __init__(self, places: Slots, rank: tuple[int, ...], idle_s: float) -> None:
        self._places, self._rank, self._idle_s = places, rank, idle_s
        self._held: AsyncExitStack | None = None
        self._taking = asyncio.Lock()
        self._turns = 0
        self._idle: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Hold the slot, after waiting for one if need be. Concurrent turns of one episode share it."""
        self._turns += 1
        self._keep()
        try:
            async with self._taking:
                if self._held is None:
                    held = AsyncExitStack()
                    await held.enter_async_context(self._places.place(*self._rank))
                    self._held = held
            yield
        finally:
            self._turns -= 1
            if not self._turns and self._held is not None:
                self._idle = asyncio.create_task(self._give_up(), name="an episode between two turns")

    async def close(self) -> None:
        """Give the slot back now."""
        self._keep()
        await self._release()

    def _keep(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    async def _give_up(self) -> None:
        await asyncio.sleep(self._idle_s)
        await self._release()

    async def _release(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            await held.aclose()
