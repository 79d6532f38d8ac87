"""Agents on nodes of a Ray cluster that have one process of ours each."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray import exceptions

from overlap.clock import now
from overlap.cluster.hosted import Delivery, Hosted
from overlap.cluster.nodes import HeadLost, NodeLost, NodeRefused, NodeSilent, code_digest
from overlap.cluster.orphans import DriverWatch
from overlap.cluster.pieces import Pieces
from overlap.cluster.ray_cluster import RayCluster, RayNodeInfo, apart, call, end, last_line
from overlap.cluster.ray_members import forget_ray, why_unusable
from overlap.errors import ConfigError, EngineError
from overlap.placement import NodeDevices
from overlap.policy import policy_digest
from overlap.process import read_proc

CLOSE_S = 12.0
"""A killed process of many GiB ends within 10 s."""
ABOUT_S = PUT_S = KNOWN_S = 60.0
_RAYS_OWN = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")
"""Ray sets these for its workers: an actor that asks for nothing sees no GPU, and has one thread."""


def as_before_ray() -> None:
    """Set what Ray has changed for this process to what it was when the node was started."""
    raylet = dict(entry.partition(b"=")[::2] for entry in read_proc(os.getppid(), "environ").split(b"\0"))
    for name in _RAYS_OWN:
        os.environ.pop(name, None)
        if (value := raylet.get(name.encode())) is not None:
            os.environ[name] = value.decode()


class RayHosted(Hosted):
    """:class:`Hosted` as a Ray actor: made where the process shall live."""

    def __init__(self, name: str) -> None:
        self._watch_driver, self._authenticated = DriverWatch(CLOSE_S), forget_ray()
        as_before_ray()
        super().__init__(name)

    async def identity(self) -> tuple[bool, str]:
        """Whether its Ray asks for a token, and the digest of its code."""
        self._called_s = now()
        self._watch_driver.called(self.orphaned, self.close)
        return self._authenticated, code_digest()


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
        self._actor: Any = None
        self._entered = False

    async def start(self, title: str, module: str, environment: Mapping[str, str]) -> str:
        self._entered = True
        await self._cluster.enter()
        self._actor = await self._cluster.actor(self._place, RayHosted, self._owner)
        if fault := await why_unusable(self._actor, authenticated=not self._cluster.unauthenticated):
            return fault
        for path, digest in self._policies.items():
            if (there := await call(self._actor.digest.remote(path))) != digest:
                what = "has other files" if there else "is not there"
                return f"the policy {path} {what}: put the same one at the same path of every node, or share the path"
        started: str = await call(self._actor.start.remote(title, module, dict(environment)))
        return started

    async def send(self, at: int, data: bytes) -> None:
        await call(self._actor.send.remote(at, data))

    async def collect(self, replies: int, log: int) -> Delivery:
        came: Delivery = await call(self._actor.collect.remote(replies, log))
        return came

    async def room(self, update: int, size: int) -> str:
        path: str = await call(self._actor.room.remote(update, size))
        return path

    async def fill(self, update: int, at: int, piece: Any) -> None:
        await call(self._actor.fill.remote(update, at, piece))

    async def free(self, update: int) -> None:
        await call(self._actor.free.remote(update))

    async def files(self, do: str, *args: Any) -> Any:
        return await call(self._actor.files.remote(do, *args))

    async def close(self) -> bool:
        if not self._entered:
            return True
        self._entered, sure = False, True
        try:
            if self._actor is not None:
                sure = await end(self._actor, CLOSE_S)
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
        self.pieces = Pieces(put)

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
    """What a node has for engines. Raises NodeLost, NodeSilent, NodeRefused."""
    actor = await cluster.actor(place, RayHosted, "survey")
    try:
        async with asyncio.timeout(ABOUT_S):
            if fault := await why_unusable(actor, authenticated=not cluster.unauthenticated):
                raise NodeRefused(fault)
            devices, memory = await call(actor.facts.remote(device))
    except TimeoutError:
        raise NodeSilent(f"no answer within {ABOUT_S:g} s") from None
    finally:
        await end(actor, CLOSE_S)
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
        if isinstance(node, NodeLost | NodeSilent | NodeRefused):
            tell(f"node {place.name} is not used: {node}")
        elif isinstance(node, BaseException):
            raise node
        else:
            found.append(node)
    if not any(node.here for node in found):
        raise ConfigError("cluster.address", cluster.address, "this machine's own node cannot be used: see above")
    return found


async def put(data: bytes) -> Any:
    """A reference to these bytes in the object store, as an array that is read there without a copy. Raises
    EngineError.
    """
    import numpy

    try:
        return await apart(lambda: ray.put(numpy.frombuffer(data, numpy.uint8)), PUT_S)
    except (TimeoutError, exceptions.RayError) as error:
        why = last_line(error) or f"no answer within {PUT_S:g} s"
        raise EngineError(f"weights cannot be put into Ray's object store on this machine: {why}") from error
