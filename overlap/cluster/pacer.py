"""Sleeps that end together: with a timer for each call to each of a thousand nodes, a driver would handle timers."""

from __future__ import annotations

import asyncio
import math

TICK_S = 0.01


class Pacer:
    """Sleepers that are due within the same ``TICK_S`` are woken by one timer, at its end."""

    def __init__(self) -> None:
        self._due: dict[int, list[asyncio.Future[None]]] = {}

    async def sleep(self, seconds: float) -> None:
        """Return after so long, or up to ``TICK_S`` later."""
        loop = asyncio.get_running_loop()
        tick = math.ceil((loop.time() + max(0.0, seconds)) / TICK_S)
        sleepers = self._due.get(tick)
        if sleepers is None:
            sleepers = self._due[tick] = []
            loop.call_at(tick * TICK_S, self._wake, tick)
        sleepers.append(sleeper := loop.create_future())
        await sleeper

    def _wake(self, tick: int) -> None:
        for sleeper in self._due.pop(tick):
            if not sleeper.done():
                sleeper.set_result(None)
