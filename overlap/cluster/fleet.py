"""The nodes of a cluster for a run that has processes on them, and which engine is on which. No Ray in here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

from overlap.clock import now
from overlap.cluster.hosted import Hosted
from overlap.cluster.members import why_unusable
from overlap.cluster.nodes import GRACE_S, ORPHAN_S, NodeLost, NodeRefused, RayNodeInfo, answer_within
from overlap.cluster.ray_cluster import RayActor, RayCluster
from overlap.config import Config
from overlap.errors import ConfigError
from overlap.placement import EngineSeat, NodeDevices, devices_here, free_memory, moved_seat

ASK_S = 60.0
"""For what an agent does once: begin, start the process, take a piece of a file."""
CLOSE_S = 12.0
"""A killed process of many GiB ends within 10 s."""
LOOK_S = 1.0
NODE_S = 1800.0
"""An engine waits so long for a node."""
KNOWN_S = 20.0
"""What a node has, or that it cannot be used, is not asked again for so long."""
REST_S = ORPHAN_S + GRACE_S + 45.0
"""A node that was silent when its engine was to end has it for no longer than this; Ray needs 65 s, as it comes, to see
that a node is gone."""


class RayFleet:
    """``engines`` begin on the nodes of their seats, and move to others where these are gone; ``fits`` says whether one
    has enough memory where it would move to.
    """

    def __init__(
        self,
        cfg: Config,
        cluster: RayCluster,
        engines: Sequence[EngineSeat],
        tell: Callable[[str], None],
        fits: Callable[[EngineSeat, NodeDevices], bool] = lambda seat, node: True,
    ) -> None:
        self._cfg, self.cluster, self.tell, self._fits = cfg, cluster, tell, fits
        self._homes = {seat.node for seat in engines}
        self._rests: dict[str, float] = {}
        self._known: dict[str, tuple[NodeDevices | str, float]] = {}
        self.places: dict[str, RayNodeInfo] = {}
        """By their names."""
        self.moved: dict[int, str] = {}
        """Where engines are that have moved, by their index."""
        self.ranks: Collection[str] = ()
        """Nodes that learner ranks sit on: no engine moves to GPUs there."""

    @asynccontextmanager
    async def joined(self) -> AsyncIterator[None]:
        """What is asked of it is asked inside. Raises ConfigError."""
        try:
            await self.cluster.enter()
            yield
        finally:
            await self.cluster.leave()

    async def living(self) -> list[str]:
        """Names of the nodes that are there and are not left alone. Raises HeadLost where nobody knows."""
        there = {place.name: place for place in await self.cluster.look() if place.alive and not place.drains}
        self.places |= there
        return [name for name in there if self._rests.get(name, 0.0) <= now()]

    def rest(self, name: str) -> None:
        """Nobody knows whether what was there has ended: it is left alone for a while."""
        self._rests[name] = now() + REST_S

    async def about(self, name: str) -> NodeDevices | None:
        """What a node has for engines and ranks; None where it cannot be used."""
        if (known := self._known.get(name)) is None or known[1] <= now():
            said = await about(self.cluster, self.places[name], self._cfg.run.device)
            known = self._known[name] = said, now() + KNOWN_S
        return known[0] if isinstance(known[0], NodeDevices) else None

    async def take(self, seat: EngineSeat) -> EngineSeat:
        """The seat for an engine that is to begin: its own, or one on another node. Raises NodeLost when there is none
        for long.
        """
        until, told = now() + NODE_S, False
        while (found := await self._found(seat)) is None:
            if now() > until:
                raise NodeLost(f"no node had room for it within {NODE_S:g} s")
            if not told:
                self.tell(f"engine {seat.index} waits for node {seat.node}, or one as large that has no engine")
                told = True
            await asyncio.sleep(LOOK_S)
        if found.node != seat.node:
            self.tell(f"engine {seat.index} moves from node {seat.node} to node {found.node}")
        return found

    async def _found(self, seat: EngineSeat) -> EngineSeat | None:
        names = await self.living()
        if seat.node in names:
            self.moved.pop(seat.index, None)
            return seat
        for name in names:
            node = await self.about(name) if self._is_free(name, seat) else None
            found = None if node is None or node.here else moved_seat(self._cfg, seat, node)
            if node and found and self._fits(found, node) and self._is_free(name, seat):  # still free
                self.moved[seat.index] = name
                return found
        return None

    def _is_free(self, name: str, seat: EngineSeat) -> bool:
        others = {node for index, node in self.moved.items() if index != seat.index}
        return not (name in others or name in self._homes or (seat.devices and name in self.ranks))


@asynccontextmanager
async def agent_on(
    cluster: RayCluster, place: RayNodeInfo, owner: str, unsure: Callable[[str], None] = lambda name: None
) -> AsyncIterator[RayActor]:
    """A ``Hosted`` there, which ends behind; ``unsure`` is told of a node where nobody knows whether that is done.
    Raises NodeLost, NodeRefused.
    """
    actor = await cluster.actor(place, partial(Hosted, owner), CLOSE_S)
    try:
        if fault := await answer_within(why_unusable(actor, authenticated=not cluster.unauthenticated), ASK_S):
            raise NodeRefused(fault)
        yield actor
    finally:
        if not await actor.end():
            unsure(place.name)


async def about(cluster: RayCluster, place: RayNodeInfo, device: str) -> NodeDevices | str:
    """What a node has for a run with ``run.device`` = ``device``, or why it cannot be used; no GPU is no reason."""
    try:
        async with agent_on(cluster, place, "survey") as actor:
            asks = actor.call("run", devices_here, "cpu" if device == "cpu" else "auto")
            devices = await answer_within(asks, ASK_S)
            memory = await answer_within(actor.call("run", free_memory), ASK_S)
    except (NodeLost, NodeRefused) as error:
        return str(error)
    if not place.here:  # what its owner keeps from Ray is not ours either
        devices = replace(devices, names=devices.names[: place.gpus])
    return NodeDevices(place.name, place.address, devices, memory, here=place.here)


async def survey(cluster: RayCluster, device: str, tell: Callable[[str], None]) -> list[NodeDevices]:
    """``about`` each node; tells of those that cannot be used. Raises ConfigError where the driver's is one of these,
    NodeLost where the head does not answer.
    """
    try:
        await cluster.enter()
        places = [place for place in await cluster.look() if place.alive]
        said = await asyncio.gather(*(about(cluster, place, device) for place in places))
    finally:
        await cluster.leave()
    for place, node in zip(places, said, strict=True):
        if isinstance(node, str):
            tell(f"node {place.name} is not used: {node}")
    found = [node for node in said if isinstance(node, NodeDevices)]
    if not any(node.here for node in found):
        raise ConfigError("cluster.address", cluster.address, "this machine's own node cannot be used: see above")
    return found
