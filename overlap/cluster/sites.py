"""Where engines live that are on nodes: each on the one that the placement gives it, or on another when that is gone.

    FarSite.start ──▶ berth: its node, else one that is free and large enough, else wait ──▶ an agent there ──▶ Peer
    FarSite.brought ──▶ what has changed of the weights: once into the object store, from there into memory of each node

No Ray in here; of it the ``Fleet`` knows.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

from overlap.aio import race
from overlap.clock import now
from overlap.cluster.far_peer import ProcessAgent, start_far
from overlap.cluster.nodes import GRACE_S, ORPHAN_S, HeadLost, NodeLost, NodeRefused
from overlap.config import Config
from overlap.errors import ClusterLost
from overlap.placement import EngineSeat, NodeDevices, moved_seat
from overlap.process import ChildProcesses, Peer

LOOK_S = 1.0
NODE_S = 1800.0
"""An engine waits so long for a node."""
UNFIT_S = 10.0
"""A node that an engine cannot move to is not asked again for so long."""
OTHER = "with what had changed they were other than here"
REST_S = ORPHAN_S + GRACE_S + 45.0
"""A node that was silent when its engine was to end has it for no longer than this; Ray needs 65 s, as it comes, to see
that a node is gone."""


class Fleet(Protocol):
    """The nodes of a cluster as they are now. Raises HeadLost where nobody knows."""

    def joined(self) -> AbstractAsyncContextManager[None]:
        """What is asked of it is asked inside."""

    async def lost(self) -> HeadLost:
        """Wait until nobody knows any more, and say why."""

    async def alive(self) -> Sequence[str]:
        """Names of the nodes that are there."""

    async def about(self, name: str) -> NodeDevices:
        """What one of them has for engines. Raises NodeLost, NodeRefused."""

    def host(self, name: str, owner: str, closed: Callable[[bool], None]) -> ProcessAgent:
        """An agent there, not begun yet, for the process of ``owner``; says with which certainty it was closed."""


class Berths:
    """Which engine of a run is on which node. ``fits`` says whether one has enough memory where it would move to."""

    def __init__(
        self,
        cfg: Config,
        fleet: Fleet,
        tell: Callable[[str], None],
        fits: Callable[[EngineSeat, NodeDevices], bool] = lambda seat, node: True,
    ) -> None:
        self._cfg, self._fleet, self.tell, self._fits = cfg, fleet, tell, fits
        self._homes: dict[int, str] = {}
        self._taken: dict[int, str] = {}
        self._rests: dict[str, float] = {}
        self._unfit: dict[str, float] = {}
        self.ranks: Collection[str] = ()
        """Nodes that learner ranks sit on: no engine moves to GPUs there."""

    async def take(self, seat: EngineSeat) -> EngineSeat:
        """The seat for an engine that is to begin: its own, or one on another node. Raises NodeLost when there is none
        for long.
        """
        until, told = now() + NODE_S, False
        self._homes[seat.index] = seat.node
        while True:
            if (found := await self._found(seat)) is not None:
                if found.node != seat.node:
                    self.tell(f"engine {seat.index} moves from node {seat.node} to node {found.node}")
                return found
            if now() > until:
                raise NodeLost(f"no node had room for it within {NODE_S:g} s")
            if not told:
                self.tell(f"engine {seat.index} waits for node {seat.node}, or one as large that has no engine")
                told = True
            await asyncio.sleep(LOOK_S)

    def rest(self, node: str) -> None:
        """Nobody knows whether the engine there has ended."""
        self._rests[node] = now() + REST_S

    def rests(self, node: str) -> bool:
        """Whether it is left alone for that."""
        return self._rests.get(node, 0.0) > now()

    async def living(self) -> list[str]:
        """The nodes that are there and are not left alone; none where that is not known. Raises HeadLost: for good."""
        try:
            return [name for name in await self._fleet.alive() if not self.rests(name)]
        except NodeLost as error:
            if isinstance(error, HeadLost):
                raise
            return []

    @property
    def strangers(self) -> set[str]:
        """Nodes that engines have moved to."""
        return {node for index, node in self._taken.items() if self._homes[index] != node}

    async def _found(self, seat: EngineSeat) -> EngineSeat | None:
        names = await self.living()
        if seat.node in names and seat.node not in self.strangers:
            self._taken[seat.index] = seat.node
            return seat
        for name in names:
            if self._is_free(name, seat) and self._unfit.get(name, 0.0) <= now():
                with contextlib.suppress(NodeLost, NodeRefused):
                    self._unfit[name] = float("inf")  # nobody else asks it meanwhile
                    try:
                        found = self._seat_on(await self._fleet.about(name), seat)
                    finally:
                        self._unfit[name] = now() + UNFIT_S
                    if found is not None and self._is_free(name, seat):  # another may have taken it meanwhile
                        self._taken[seat.index] = name
                        return found
        return None

    def _is_free(self, name: str, seat: EngineSeat) -> bool:
        others = {node for index, node in self._taken.items() if index != seat.index}
        return name not in others and name not in self._homes.values() and not (seat.devices and name in self.ranks)

    def _seat_on(self, node: NodeDevices, seat: EngineSeat) -> EngineSeat | None:
        found = None if node.here else moved_seat(self._cfg, seat, node)
        return found if found is not None and self._fits(found, node) else None


def cluster_lost(error: HeadLost) -> ClusterLost:
    """What whoever waits for an engine gets."""
    return ClusterLost(f"the cluster is lost: {error}; over another one the run goes on with --resume")


@contextlib.contextmanager
def ending(life: ChildProcesses, what: str, lost: Callable[[HeadLost], Exception] = cluster_lost) -> Iterator[None]:
    """A node that is lost inside ends the life, and its cause is raised; ``lost`` makes that of a cluster."""
    try:
        with life.guard():
            yield
    except NodeLost as error:
        life.fail(lost(error) if isinstance(error, HeadLost) else f"{what}: {error}")
        life.check()
        raise


class FarSite:
    """An ``EngineSite`` (see ``overlap.generate``) on a node, for one engine after the other of one seat."""

    def __init__(self, fleet: Fleet, berths: Berths) -> None:
        self._fleet, self._berths = fleet, berths
        self._host: ProcessAgent | None = None
        self._updates = 0
        self._watching: asyncio.Task[None] | None = None

    async def start(
        self, life: ChildProcesses, title: str, module: str, environment: Mapping[str, str], seat: EngineSeat
    ) -> Peer:
        """Raises the cause when the life is over, also where no node has room for long."""
        async with self._fleet.joined():
            seat = await self._seat(life, title, seat)
            node = seat.node
            self._host = self._fleet.host(node, life.name, lambda sure: None if sure else self._berths.rest(node))
            peer = await start_far(self._host, life, title, module, {**environment, **seat.environment})
            self._watching = asyncio.create_task(self._watch(life), name=f"watch the head for {life.name}")
            return peer

    async def _watch(self, life: ChildProcesses) -> None:
        """Without its head Ray ends this process after a while: the life ends before."""
        lost, _ = await race(self._fleet.lost(), life.wait_dead())
        if not lost.cancelled():
            life.fail(cluster_lost(lost.result()))

    async def _seat(self, life: ChildProcesses, title: str, seat: EngineSeat) -> EngineSeat:
        with ending(life, f"{title} cannot be started"):
            taken = await self._berths.take(seat)
        return taken

    @asynccontextmanager
    async def brought(
        self, life: ChildProcesses, info: Mapping[str, Any], version: int
    ) -> AsyncIterator[Mapping[str, Any]]:
        """Weights that lie in this machine's memory, in that of the node; what goes another way as it is."""
        host = self._host
        if "path" not in info or host is None:
            yield info
            return
        self._updates = update = self._updates + 1
        with ending(life, f"the {life.name} on node {host.name} is lost"):
            brought = await host.bring(update, str(info["path"]), version, int(info["size"]))
        if brought.wrong:
            self._berths.tell(f"{brought.wrong} piece(s) of version {version} went whole to node {host.name}: {OTHER}")
        yield {**info, "path": brought.path}
