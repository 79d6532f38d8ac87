"""What the nodes of a cluster did, for who keeps figures of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class NodeFigures(NamedTuple):
    """One node, since it was asked for last: programs ``judged`` and the seconds that they ran, and jobs that were
    ``lost`` with it and went elsewhere. ``workers``: programs that it judges at once, 0 where it is gone. ``clock_s``
    and ``error_s``: how far its clock is ahead of the driver's, and by how much that may be wrong, s.
    """

    node: str
    workers: int = 0
    tier: str = ""
    judged: int = 0
    run_s: float = 0.0
    lost: int = 0
    clock_s: float = 0.0
    error_s: float = 0.0

    def busy_share(self, seconds: float) -> float:
        """Share of its workers' time that the programs took that ended; 0 where it is gone."""
        return self.run_s / (self.workers * seconds) if self.workers and seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class ClusterFigures:
    """Every node that is there or did anything within the last ``seconds``."""

    seconds: float
    nodes: tuple[NodeFigures, ...]
