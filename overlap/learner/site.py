"""The machines that a learner's ranks are on: the driver's, or others that can do the same (see ``cluster``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from overlap.placement.seats import Placement, RankSeat
from overlap.process.calls import Peer
from overlap.process.child_processes import ChildProcesses


class Site(Protocol):
    """Where the ranks of one learner live. What fails over there ends their ``life``, whose cause is raised."""

    async def seated(self, life: ChildProcesses, placement: Placement) -> Placement:
        """The placement as it can be now: with other seats for ranks whose machine is gone. Raises LearnerError where
        there is no room for them.
        """

    async def start(
        self, life: ChildProcesses, title: str, module: str, environment: Mapping[str, str], seat: RankSeat
    ) -> Peer:
        """Start ``python -m module FD`` on that seat and connect to it."""

    async def brought(self, life: ChildProcesses, info: Mapping[str, Any], version: int) -> Mapping[str, Any]:
        """What rank 0 says of the weights that it published, as it is true here until the next ones come."""

    async def close(self) -> None:
        """Free what is held here."""


class Here:
    """The driver's machine."""

    async def seated(self, life: ChildProcesses, placement: Placement) -> Placement:
        return placement

    async def start(
        self, life: ChildProcesses, title: str, module: str, environment: Mapping[str, str], seat: RankSeat
    ) -> Peer:
        return await Peer.start(life, title, module, {**environment, **seat.environment})

    async def brought(self, life: ChildProcesses, info: Mapping[str, Any], version: int) -> Mapping[str, Any]:
        return info

    async def close(self) -> None:
        return None
