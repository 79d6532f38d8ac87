"""Over which machines a run spreads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from overlap.config.rules import Section, free


@dataclass(frozen=True, slots=True)
class ClusterConfig(Section):
    """A Ray cluster whose nodes work for the run; without an address nothing but this machine does."""

    section: ClassVar[str] = "cluster"

    address: str = free("")
    """Where its head listens, "host:port"; "": this machine alone, and Ray is not needed."""
    unauthenticated: bool = free(False)
    """Join a cluster that asks for no token: whoever reaches its ports runs anything on all of its nodes."""
    spread_ranks: bool = free(False)
    """On CPUs: learner ranks sit each on a node of its own, as far as there are nodes, instead of on this machine. On
    GPUs they sit together where that can be, on this machine first, and on several nodes otherwise."""
