"""The machines that a learner's ranks are on: the driver's, or others that can do the same (see ``cluster``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import Any, Protocol

from overlap.placement.seats import Placement, RankSeat
from overlap.process.calls import Peer
from overlap.process.child_processes import ChildProcesses

Folders = AbstractAsyncContextManager[Sequence[Path]]


class Site(Protocol):
    """Place of the ranks of one learner. What fails there ends their ``life``, whose cause is raised."""

    async def seated(self, life: ChildProcesses, placement: Placement) -> Placement:
        """The placement as it can be now: with other seats for ranks whose machine is gone. Raises LearnerError where
        there is no room for them.
        """

    async def start(
        self, life: ChildProcesses, title: str, module: str, environment: Mapping[str, str], seat: RankSeat
    ) -> Peer:
        """Start ``python -m module FD`` on that seat and connect to it."""

    def saving(self, life: ChildProcesses, folder: Path) -> Folders:
        """Folder that each rank writes into; in the end all that they wrote is in ``folder``, here. Raises RunDirError
        where it has no room.
        """

    def loading(self, life: ChildProcesses, folder: Path, *, recut: bool) -> Folders:
        """Folder for each rank that has what ``folder``, a saved state, has here; what is of other ranks alone may be
        missing, unless the state is ``recut`` for these. Raises RunDirError where a machine has no room for it.
        """

    async def brought(self, life: ChildProcesses, info: Mapping[str, Any], version: int) -> Mapping[str, Any]:
        """Return what rank 0 says of the weights that it published, as it is true here until the next ones come."""

    async def close(self) -> None:
        """Free what is held here."""


class Here:
    """The driver's machine, with ``ranks`` ranks."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks

    async def seated(self, life: ChildProcesses, placement: Placement) -> Placement:
        return placement

    async def start(
        self, life: ChildProcesses, title: str, module: str, environment: Mapping[str, str], seat: RankSeat
    ) -> Peer:
        return await Peer.start(life, title, module, {**environment, **seat.environment})

    def saving(self, life: ChildProcesses, folder: Path) -> Folders:
        return nullcontext([folder] * self._ranks)

    def loading(self, life: ChildProcesses, folder: Path, *, recut: bool) -> Folders:
        return nullcontext([folder] * self._ranks)

    async def brought(self, life: ChildProcesses, info: Mapping[str, Any], version: int) -> Mapping[str, Any]:
        return info

    async def close(self) -> None:
        return None
