"""How far a node's clock is ahead of ours, by the calls that are made to it anyway.

    we send at a ──▶ it is asked at b    we hear at d ◀── it says so at c

It is ahead by ((b - a) + (c - d)) / 2, and that is wrong by ((d - a) - (c - b)) / 2 at most: what the two ways took
together, for how that divides between them nobody knows (as in NTP, Mills 1991), and what the clocks drift apart
meanwhile. The best call counts until another one is better than it still is.
"""

from __future__ import annotations

DRIFT = 5e-4
"""Two clocks drift apart by this share of the time at most: what the kernel slews one by."""


class Offset:
    """``ahead_s`` and its error as they were known at ``at_s``; all by monotonic clocks, s."""

    def __init__(self, ahead_s: float = 0.0, error_s: float = float("inf"), at_s: float = 0.0) -> None:
        self.ahead_s, self._error_s, self._at_s = ahead_s, error_s, at_s

    def note(self, sent_s: float, asked_s: float, said_s: float, heard_s: float) -> None:
        """A call that went there and back; ``asked_s`` and ``said_s`` are by the node's clock."""
        took_s = heard_s - sent_s
        error_s = max(0.0, (took_s - (said_s - asked_s)) / 2) + DRIFT * took_s
        if error_s <= self.error_s(heard_s):
            self.ahead_s = ((asked_s - sent_s) + (said_s - heard_s)) / 2
            self._error_s, self._at_s = error_s, heard_s

    def error_s(self, at_s: float) -> float:
        """By how much ``ahead_s`` may be wrong at that moment of ours."""
        return self._error_s + DRIFT * max(0.0, at_s - self._at_s)
