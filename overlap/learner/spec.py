"""All that a rank is told at its start."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from overlap.config import Config
from overlap.placement import Placement, RankSeat


@dataclass(frozen=True, slots=True)
class RankSpec:
    """``rendezvous`` is a file that does not exist yet; all paths are absolute. ``critic`` is what a critic starts
    from, where there is one. Over several machines the ranks meet at the ``port`` of rank 0 instead. ``imports`` are
    the folders in which a rank also looks for modules of the user's.
    """

    rank: int
    world: int
    rendezvous: Path
    policy: Path
    critic: Path
    cfg: Config
    total_updates: int
    placement: Placement
    port: int = 0
    imports: tuple[str, ...] = ()

    @property
    def seat(self) -> RankSeat:
        """Where this rank sits."""
        return self.placement.ranks[self.rank]

    @property
    def beside(self) -> int:
        """Ranks on its machine, with itself."""
        return len(self.placement.ranks_on(self.seat.node))

    @property
    def far(self) -> bool:
        """Whether some ranks are on other machines than others, or than the driver."""
        return bool(self.placement.rank_nodes)
