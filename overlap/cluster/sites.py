"""Where engines live that are on nodes: each on the one that the placement gives it, or on another when that is gone.

    FarSite.start ──▶ berth: its node, else one that is free and large enough, else wait ──▶ an agent there ──▶ Peer
    FarSite.brought ──▶ weights in pieces: once into the object store, from there into memory of each node

No Ray in here; of it the ``Fleet`` knows.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

from overlap.clock import now
from overlap.cluster.far_peer import Host, patiently, start_far
from overlap.cluster.nodes import GRACE_S, ORPHAN_S, HeadLost, NodeLost, NodeRefused, NodeSilent
from overlap.cluster.pieces import PIECE_BYTES, Pieces
from overlap.config import Config
from overlap.placement import EngineSeat, NodeDevices, moved
from overlap.process import Life, Peer

LOOK_S = 1.0
NODE_S = 1800.0
"""An engine waits so long for a node."""
REST_S = ORPHAN_S + GRACE_S + 45.0
"""A node that was silent when its engine was to end has it for no longer than this; Ray needs 65 s, as it comes, to see
that a node is gone."""


class Fleet(Protocol):
    """The nodes of a cluster as they are now. Raises HeadLost where nobody knows."""

    pieces: Pieces

    def joined(self) -> AbstractAsyncContextManager[None]:
        """What is asked of it is asked inside."""

    async def alive(self) -> Sequence[str]:
        """Names of the nodes that are there."""

    async def about(self, name: str) -> NodeDevices:
        """What one of them has for engines. Raises NodeLost, NodeSilent, NodeRefused."""

    def host(self, name: str, owner: str, closed: Callable[[bool], None]) -> Host:
        """An agent there, not begun yet, for the process of ``owner``; says with which certainty it was closed."""


class Berths:
    """Which engine of a run is on which node."""

    def __init__(self, cfg: Config, fleet: Fleet, tell: Callable[[str], None]) -> None:
        self._cfg, self._fleet, self._tell = cfg, fleet, tell
        self._homes: dict[int, str] = {}
        self._taken: dict[int, str] = {}
        self._rests: dict[str, float] = {}
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
                    self._tell(f"engine {seat.index} moves from node {seat.node} to node {found.node}")
                return found
            if now() > until:
                raise NodeLost(f"no node had room for it within {NODE_S:g} s")
            if not told:
                self._tell(f"engine {seat.index} waits for node {seat.node}, or one as large that has no engine")
                told = True
            await asyncio.sleep(LOOK_S)

    def rest(self, node: str) -> None:
        """Nobody knows whether the engine there has ended."""
        self._rests[node] = now() + REST_S

    def rests(self, node: str) -> bool:
        """Whether it is left alone for that."""
        return self._rests.get(node, 0.0) > now()

    @property
    def strangers(self) -> set[str]:
        """Nodes that engines have moved to."""
        return {node for index, node in self._taken.items() if self._homes[index] != node}

    async def _found(self, seat: EngineSeat) -> EngineSeat | None:
        try:
            alive = await self._fleet.alive()
        except HeadLost:  # for good
            raise
        except (NodeLost, NodeSilent):
            return None
        names = [name for name in alive if not self.rests(name)]
        others = {index: node for index, node in self._taken.items() if index != seat.index}
        strangers = {node for index, node in others.items() if self._homes[index] != node}
        if seat.node in names and seat.node not in strangers:
            self._taken[seat.index] = seat.node
            return seat
        for name in names:
            if name in others.values() or name in self._homes.values() or (seat.devices and name in self.ranks):
                continue
            with contextlib.suppress(NodeLost, NodeSilent, NodeRefused):
                node = await self._fleet.about(name)
                if not node.here and (found := moved(self._cfg, seat, node)) is not None:
                    self._taken[seat.index] = name
                    return found
        return None


class FarSite:
    """A ``Site`` (see ``overlap.generate``) on a node, for one engine after the other of one seat."""

    def __init__(self, fleet: Fleet, berths: Berths) -> None:
        self._fleet, self._berths = fleet, berths
        self._host: Host | None = None

    async def start(
        self, life: Life, title: str, module: str, environment: Mapping[str, str], seat: EngineSeat
    ) -> Peer:
        """Raises the cause when the life is over, also where no node has room for long."""
        async with self._fleet.joined():
            seat = await self._seat(life, title, seat)
            node = seat.node
            self._host = self._fleet.host(node, life.name, lambda sure: None if sure else self._berths.rest(node))
            return await start_far(self._host, life, title, module, {**environment, **seat.environment})

    async def _seat(self, life: Life, title: str, seat: EngineSeat) -> EngineSeat:
        fault = ""
        with life.guard():
            try:
                return await self._berths.take(seat)
            except NodeLost as error:
                fault = str(error)
        life.fail(f"{title} cannot be started: {fault}")
        life.check()
        raise AssertionError("a life that has failed is over")

    @asynccontextmanager
    async def brought(self, life: Life, info: Mapping[str, Any], version: int) -> AsyncIterator[Mapping[str, Any]]:
        """Weights that lie in this machine's memory, in that of the node; what goes another way as it is."""
        host = self._host
        if "path" not in info or host is None:
            yield info
            return
        try:
            yield {**info, "path": await self._bring(host, life, info, version)}
        finally:
            with contextlib.suppress(NodeLost, NodeSilent):
                await patiently(host.free)

    async def _bring(self, host: Host, life: Life, info: Mapping[str, Any], version: int) -> str:
        """The path by which the engine finds them."""
        pieces, size, fault = self._fleet.pieces, int(info["size"]), ""
        with life.guard(), pieces.reading():
            try:
                path = await patiently(lambda: host.room(size))
                for at in range(0, size, PIECE_BYTES):
                    piece = await pieces.get(info, version, at)
                    await patiently(lambda at=at, piece=piece: host.fill(at, piece))  # type: ignore[misc]
                return path
            except (NodeLost, NodeSilent) as error:
                fault = str(error)
        life.fail(f"the {life.name} on node {host.name} is lost: {fault}")
        life.check()
        raise AssertionError("a life that has failed is over")
