"""Data that the driver sends to a rank at its start."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from overlap.config.fields import Config
from overlap.placement.seats import Placement, RankSeat


@dataclass(frozen=True, slots=True)
class RankSpec:
    """``rendezvous`` is a file that does not exist yet; all paths are absolute. ``critic`` is the checkpoint of the
    critic, if there is one, ``reference`` that of the reference policy (None: the policy's). On several machines the
    ranks connect to the ``port`` of rank 0 instead. ``imports`` are folders in which a rank also looks for modules of
    the user's.
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
    reference: Path | None = None

    @property
    def seat(self) -> RankSeat:
        """The device of this rank."""
        return self.placement.ranks[self.rank]

    @property
    def beside(self) -> int:
        """Number of ranks on this rank's machine."""
        return len(self.placement.ranks_on(self.seat.node))

    @property
    def far(self) -> bool:
        """True when the ranks and the driver are on more than one machine."""
        return bool(self.placement.rank_nodes)
