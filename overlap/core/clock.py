"""Time, as the running event loop has it: its clock, one that can be paused, and the offset of another machine's.

An ordinary loop's clock is ``time.monotonic()``, one for all processes of a machine.
"""

from __future__ import annotations

import asyncio

EPSILON_S = 1e-9
"""Sums of seconds are no more exact than this."""
DRIFT = 5e-4
"""Two clocks drift apart by this share of the time at most: what the kernel slews one by."""


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


class Offset:
    """Seconds by which another machine's clock is ahead of ours: for a call that we send at a, which it gets at b and
    answers at c, and whose answer we get at d, ((b - a) + (c - d)) / 2. The error is at most ((d - a) - (c - b)) / 2
    (as in NTP, Mills 1991), plus the drift of the clocks since then. The best call counts until another one has a
    smaller error than its own has become.
    """

    ahead_s, _error_s, _at_s = 0.0, float("inf"), 0.0

    def note(self, sent_s: float, asked_s: float, said_s: float, heard_s: float) -> None:
        """A call that went there and back; ``asked_s`` and ``said_s`` are by the other clock."""
        took_s = heard_s - sent_s
        error_s = max(0.0, (took_s - (said_s - asked_s)) / 2) + DRIFT * took_s
        if error_s <= self.error_s(heard_s):
            self.ahead_s = ((asked_s - sent_s) + (said_s - heard_s)) / 2
            self._error_s, self._at_s = error_s, heard_s

    def error_s(self, at_s: float) -> float:
        """By how much ``ahead_s`` may be wrong at that moment of ours."""
        return self._error_s + DRIFT * max(0.0, at_s - self._at_s)
