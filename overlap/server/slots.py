"""Places in the engine, one per episode: it keeps its own between two turns, for a bounded time.

an episode's turns ──▶ place held ──▶ idle for idle_s ──▶ given up ──▶ the oldest episode that waits
                          ▲ └── next turn ◀── in time          │
                          └── waits again ◀── too late ◀───────┘
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from sandbox.pool import Slots


class Place:
    """Of one episode, whose rank among those that wait is ``rank``: lower ones first. To be closed at its end."""

    def __init__(self, places: Slots, rank: tuple[int, ...], idle_s: float) -> None:
        self._places, self._rank, self._idle_s = places, rank, idle_s
        self._held: AsyncExitStack | None = None
        self._taking = asyncio.Lock()
        self._turns = 0
        self._idle: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Holds the place; waits for one where it has none. Turns of one episode at once share it."""
        self._turns += 1
        self._stay()
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
        """Give it back now; for good, if nothing more is asked of it."""
        self._stay()
        await self._release()

    def _stay(self) -> None:
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
