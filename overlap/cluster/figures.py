"""What is known of the nodes: what each did between two looks at it, and how far its clock is ahead of ours.

    we send at a ──▶ it is asked at b    we hear at d ◀── it says so at c

A clock is ahead by ((b - a) + (c - d)) / 2, and that is wrong by ((d - a) - (c - b)) / 2 at most: what the two ways
took together, for how that divides between them nobody knows (as in NTP, Mills 1991), and what the clocks drift apart
meanwhile. The best call counts until another one is better than it still is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from overlap.core import ClusterFigures, NodeFigures

if TYPE_CHECKING:
    from overlap.cluster.desk import Desk

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


@dataclass(slots=True)
class _Tally:
    judged: int = 0
    run_s: float = 0.0
    lost: int = 0


class Tallies:
    """Counts by the names of nodes; as many as did anything since the last look."""

    def __init__(self) -> None:
        self._of: defaultdict[str, _Tally] = defaultdict(_Tally)
        self._since_s: float | None = None

    def judged(self, node: str, run_s: float) -> None:
        """A program was judged there, and ran so long."""
        tally = self._of[node]
        tally.judged += 1
        tally.run_s += run_s

    def lost(self, node: str, jobs: int) -> None:
        """So many jobs went elsewhere when it was lost or silent."""
        self._of[node].lost += jobs

    def take(self, there: Mapping[str, Desk], at_s: float) -> ClusterFigures:
        """Of all nodes since the last look, and the names of those that are ``there``; the counts begin again."""
        seconds = 0.0 if self._since_s is None else at_s - self._since_s
        self._since_s = at_s
        done, self._of = self._of, defaultdict(_Tally)
        gone = tuple(_figures(name, tally, None, at_s) for name, tally in done.items() if name not in there)
        figures = (_figures(name, done.get(name, _NONE), desk, at_s) for name, desk in there.items())
        return ClusterFigures(seconds, (*figures, *gone))


_NONE = _Tally()


def _figures(name: str, tally: _Tally, desk: Desk | None, at_s: float) -> NodeFigures:
    done = NodeFigures(name, judged=tally.judged, run_s=tally.run_s, lost=tally.lost)
    if desk is None:
        return done
    facts, offset = desk.facts, desk.offset
    return done._replace(workers=facts.workers, tier=facts.tier, clock_s=offset.ahead_s, error_s=offset.error_s(at_s))
