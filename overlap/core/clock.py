"""Time, as the running event loop has it: its clock, one that can be paused, and the offset of another machine's.

An ordinary loop's clock is ``time.monotonic()``, one for all processes of a machine.
"""

from __future__ import annotations

import asyncio

EPSILON_S = 1e-9
"""Sums of seconds are no more exact than this."""


def now() -> float:
    """Seconds, by the clock of the running event loop."""
    return asyncio.get_running_loop().time()


class PausableClock:
    """``now`` without the time in which it was paused. Belongs to one event loop."""

    def __init__(self) -> None:
        self._since_s: float | None = None
        self._paused_s = 0.0
        self._runs = asyncio.Event()
        self._runs.set()

    @property
    def paused(self) -> bool:
        return self._since_s is not None

    def now(self) -> float:
        """Seconds; differences between two moments count only the time in which it ran."""
        return (now() if self._since_s is None else self._since_s) - self._paused_s

    def pause(self) -> None:
        """Stand still until ``resume``; no effect where it does."""
        if self._since_s is None:
            self._since_s = now()
            self._runs.clear()

    def resume(self) -> None:
        """Go on; no effect where it runs."""
        if self._since_s is not None:
            self._paused_s += now() - self._since_s
            self._since_s = None
            self._runs.set()

    async def sleep(self, seconds: float) -> None:
        """Return when ``seconds`` have passed by this clock."""
        until = self.now() + seconds
        await asyncio.sleep(seconds)
        while (left := until - self.now()) > EPSILON_S:
            await self._runs.wait()
            await asyncio.sleep(left)
