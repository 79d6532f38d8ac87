"""Agents on nodes of a Ray cluster that have one process of ours each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from overlap.cluster.hosted import Delivery, Hosted
from overlap.cluster.members import why_unusable
from overlap.cluster.nodes import HeadLost, NodeLost, NodeRefused, RayNodeInfo, answer_within
from overlap.cluster.pieces import Brought
from overlap.cluster.ray_cluster import RayActor, RayCluster
from overlap.errors import ConfigError
from overlap.placement import NodeDevices
from overlap.policy import policy_digest

CLOSE_S = 12.0
"""A killed process of many GiB ends within 10 s."""
ABOUT_S = KNOWN_S = 60.0


class RayHost:
    """A :class:`~overlap.cluster.far_peer.ProcessAgent` at ``place``; ``owner`` is what the life there is called. Of
    ``policies``, paths and what their digests are here, each must be there too.
    """

    def __init__(
        self,
        cluster: RayCluster,
        place: RayNodeInfo,
        owner: str,
        *,
        policies: Mapping[Path, str] | None = None,
        closed: Callable[[bool], None] = lambda sure: None,
    ) -> None:
        self._cluster, self._place, self._owner = cluster, place, owner
        self._policies, self._closed = dict(policies or {}), closed
        self.name = place.name
        self._actor: RayActor | None = None
        self._entered = False

    async def start(self, title: str, module: str, environment: Mapping[str, str]) -> str:
        self._entered = True
        await self._cluster.enter()
        self._actor = await self._cluster.actor(self._place, partial(Hosted, self._owner), CLOSE_S)
        if fault := await why_unusable(self._actor, authenticated=not self._cluster.unauthenticated):
            return fault
        for path, digest in self._policies.items():
            if (there := await self._actor.call("digest", path)) != digest:
                what = "has other files" if there else "is not there"
                return f"the policy {path} {what}: put the same one at the same path of every node, or share the path"
        return str(await self._actor.call("start", title, module, dict(environment)))

    async def exchange(self, data: bytes, log: int, wait_s: float) -> Delivery:
        came: Delivery = await self._there.call("exchange", data, log, wait_s)
        return came

    def nudge(self) -> None:
        self._there.nudge()

    async def bring(self, update: int, path: str, version: int, size: int) -> Brought:
        return await self._there.bring(update, path, version, size)

    async def files(self, do: str, *args: Any) -> Any:
        return await self._there.call("files", do, *args)

    @property
    def _there(self) -> RayActor:
        if self._actor is None:
            raise NodeLost("it was not started")
        return self._actor

    async def close(self) -> bool:
        if not self._entered:
            return True
        self._entered, sure = False, True
        try:
            if self._actor is not None:
                sure = await self._actor.end()
        finally:
            self._closed(sure)
            await self._cluster.leave()
        return sure


class RayFleet:
    """:class:`~overlap.cluster.sites.Fleet` of a cluster, for a run with this ``run.device`` and these policies."""

    def __init__(self, cluster: RayCluster, device: str, *policies: Path) -> None:
        self._cluster, self._device, self._paths = cluster, device, policies
        self._policies: dict[Path, str] = {}
        self._places: dict[str, RayNodeInfo] = {}
        self._known: dict[str, tuple[NodeDevices, float]] = {}

    @asynccontextmanager
    async def joined(self) -> AsyncIterator[None]:
        try:
            await self._cluster.enter()
            for path in self._paths:
                if path not in self._policies:
                    self._policies[path] = await asyncio.to_thread(policy_digest, path)
            yield
        finally:
            await self._cluster.leave()

    async def lost(self) -> HeadLost:
        return await self._cluster.lost()

    async def alive(self) -> Sequence[str]:
        look = await self._cluster.look()
        self._places = {place.name: place for place in look if place.alive and not place.drains}
        return list(self._places)

    async def about(self, name: str) -> NodeDevices:
        known, at_s = self._known.get(name, (None, 0.0))
        if known is None or time.monotonic() - at_s > KNOWN_S:
            known = await about(self._cluster, self._places[name], self._device)
            self._known[name] = known, time.monotonic()
        return known

    def host(self, name: str, owner: str, closed: Callable[[bool], None]) -> RayHost:
        return RayHost(self._cluster, self._places[name], owner, policies=self._policies, closed=closed)


async def about(cluster: RayCluster, place: RayNodeInfo, device: str) -> NodeDevices:
    """What a node has for engines. Raises NodeLost, NodeRefused."""
    actor = await cluster.actor(place, partial(Hosted, "survey"), CLOSE_S)
    try:
        if fault := await answer_within(why_unusable(actor, authenticated=not cluster.unauthenticated), ABOUT_S):
            raise NodeRefused(fault)
        devices, memory = await answer_within(actor.call("facts", device), ABOUT_S)
    finally:
        await actor.end()
    if not place.here:  # what its owner keeps from Ray is not ours either
        devices = replace(devices, names=devices.names[: place.gpus])
    return NodeDevices(place.name, place.address, devices, memory, here=place.here)


async def survey(cluster: RayCluster, device: str, tell: Callable[[str], None]) -> list[NodeDevices]:
    """What each node has for the engines of a run with ``run.device`` = ``device``; tells of those that cannot be used.
    Raises ConfigError where the driver's is one of these, NodeLost where the head does not answer.
    """
    try:
        await cluster.enter()
        places = [place for place in await cluster.look() if place.alive]
        said = await asyncio.gather(*(about(cluster, place, device) for place in places), return_exceptions=True)
    finally:
        await cluster.leave()
    found = []
    for place, node in zip(places, said, strict=True):
        if isinstance(node, NodeLost | NodeRefused):
            tell(f"node {place.name} is not used: {node}")
        elif isinstance(node, BaseException):
            raise node
        else:
            found.append(node)
    if not any(node.here for node in found):
        raise ConfigError("cluster.address", cluster.address, "this machine's own node cannot be used: see above")
    return found
