"""All that a rank is told at its start."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from overlap.config import Config
from overlap.placement import Placement, RankSeat


@dataclass(frozen=True, slots=True)
class RankSpec:
    """``rendezvous`` is a file that does not exist yet, ``driver`` a pid; all paths are absolute. ``critic`` is what a
    critic starts from, where there is one.
    """

    rank: int
    world: int
    driver: int
    rendezvous: Path
    policy: Path
    critic: Path
    cfg: Config
    total_updates: int
    placement: Placement

    @property
    def seat(self) -> RankSeat:
        """Where this rank sits."""
        return self.placement.ranks[self.rank]
