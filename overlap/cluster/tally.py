"""What each node did, between two looks at it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from overlap.cluster.desk import Desk
from overlap.core import ClusterFigures, NodeFigures


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
