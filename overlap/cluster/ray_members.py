"""The nodes of a Ray cluster as those that judge programs, with an agent of ours on each."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any, Protocol

from overlap.clock import now
from overlap.cluster.agent import Agent
from overlap.cluster.capacity import capacity
from overlap.cluster.nodes import NOTHING, Facts, JobParcel, Node, NodeRefused, NodeReply, NodeSilent, code_digest
from overlap.cluster.orphans import DriverWatch
from overlap.cluster.ray_cluster import LOOK_S, RayCluster, RayNodeInfo, call, end, offset
from overlap.cluster.wire import pack_parcel, unpack_parcel
from overlap.verify import JudgePool
from sandbox.core import Isolation
from sandbox.errors import IsolationUnavailable, SandboxError

AGAIN_S, AGAIN_MAX_S, STEADY_S = 5.0, 300.0, 60.0
"""A node whose agent was lost gets another one after so long; twice as long each time, until one has lived steadily."""
CLOSE_S = 6.0
"""A sandbox ends within 5 s, or is killed."""


class NodePool(JudgePool, Protocol):
    """What an agent judges with; ``workers`` programs at once."""

    workers: int


MakePool = Callable[[int], NodePool]
"""Called on the node, with the most programs that it may judge at once."""


def sandbox_pool(
    isolation: Isolation, packages: tuple[str, ...], judge_once: bool, all_cases: bool, workers: int
) -> NodePool:
    """A sandbox with so many workers, at most one for every core that this process may use."""
    from sandbox.pool import Pool as SandboxPool

    return SandboxPool(
        workers,
        isolation=isolation,
        packages=packages,
        stop_at_first_failure=not all_cases,
        judge_once=judge_once,
    )


def forget_ray() -> bool:
    """Take all that this process was told of the cluster out of its environment: nothing that it starts shall know how
    to get in. Whether there was a token.
    """
    authenticated = os.environ.get("RAY_AUTH_MODE") == "token"
    for name in [name for name in os.environ if name.startswith("RAY_")]:
        del os.environ[name]
    return authenticated


class RayAgent(Agent):
    """An :class:`Agent` as a Ray actor: made where it shall live."""

    def __init__(self, make_pool: MakePool, workers: int) -> None:
        self._watch_driver, self._authenticated = DriverWatch(CLOSE_S), forget_ray()
        pool = make_pool(workers)
        super().__init__(lambda: pool, pool.workers)

    async def identity(self) -> tuple[bool, str]:
        """Whether its Ray asks for a token, and the digest of its code."""
        self._called_s = now()
        self._watch_driver.called(self.orphaned, self.close)
        return self._authenticated, code_digest()

    async def send_packed(self, packed: bytes) -> None:
        await self.send(unpack_parcel(packed))

    async def collect_packed(self, packed: bytes) -> NodeReply:
        return await self.collect(unpack_parcel(packed) if packed else NOTHING)


async def why_unusable(actor: Any, *, authenticated: bool) -> str:
    """Why an agent's node cannot be used, "" where it can. ``authenticated``: its Ray has to ask for a token."""
    asks, code = await call(actor.identity.remote())
    if authenticated and not asks:
        return "its Ray lets everybody in; join it with RAY_AUTH_MODE=disabled only where that is meant"
    return "" if code == code_digest() else "another version of this package, or of Python, is installed there"


class RayNode:
    """A :class:`~overlap.cluster.nodes.Node`; one without an actor, which it gets not for the reason ``why``."""

    drains = False

    def __init__(self, name: str, actor: Any, *, authenticated: bool, why: str = "") -> None:
        self.name, self._actor, self._authenticated, self._why = name, actor, authenticated, why
        self.made_s, self.lost_s = time.monotonic(), float("inf")
        self.tries = 0
        """Agents that its machine had before, none of which lived long."""

    async def hello(self) -> Facts:
        if self._why:
            raise NodeRefused(self._why)
        if fault := await why_unusable(self._actor, authenticated=self._authenticated):
            raise NodeRefused(fault)
        try:
            facts: Facts = await call(self._actor.hello.remote())
        except IsolationUnavailable as error:
            raise NodeRefused(f"it cannot isolate programs as verify.isolation asks: {error}") from error
        except SandboxError as error:
            raise NodeRefused(f"its sandbox does not work: {type(error).__name__}: {error}") from error
        clock_s, error_s = await offset(self._actor.clock.remote)
        return facts._replace(clock_s=clock_s, error_s=error_s)

    async def send(self, parcel: JobParcel) -> None:
        await call(self._actor.send_packed.remote(pack_parcel(parcel)))

    async def collect(self, parcel: JobParcel = NOTHING) -> NodeReply:
        reply: NodeReply = await call(
            self._actor.collect_packed.remote(b"" if parcel is NOTHING else pack_parcel(parcel))
        )
        return reply

    async def reset(self, epoch: int) -> None:
        while True:
            try:
                return await call(self._actor.reset.remote(epoch))
            except NodeSilent:
                await asyncio.sleep(LOOK_S)

    async def close(self) -> None:
        self.lost_s = time.monotonic()
        if self._actor is not None:
            await end(self._actor, CLOSE_S)

    @property
    def rests(self) -> bool:
        """Whether its machine gets another agent, but not yet."""
        return time.monotonic() - self.lost_s < float(min(AGAIN_MAX_S, AGAIN_S * 2.0**self.tries))


class RayMembers:
    """:class:`~overlap.cluster.nodes.Members` of a cluster. ``make_pool`` makes what judges on each node, a sandbox
    without it. ``workers``: what this machine judges at once; each further one judges with all of its cores that are
    free, and ``bound`` says how many of those an engine or learner rank of ours uses there.
    """

    def __init__(
        self,
        cluster: RayCluster,
        *,
        isolation: Isolation = "auto",
        packages: Sequence[str] = (),
        judge_once: bool = True,
        all_cases: bool = False,
        workers: int | None = None,
        bound: Callable[[RayNodeInfo], int] = lambda place: 0,
        make_pool: MakePool | None = None,
    ) -> None:
        self._cluster, self._entered = cluster, False
        self._workers, self._bound = workers, bound
        self._make_pool = make_pool or partial(sandbox_pool, isolation, tuple(packages), judge_once, all_cases)
        self._nodes: dict[str, RayNode] = {}

    async def joined(self) -> AsyncIterator[Node]:
        self._entered = True
        await self._cluster.enter()
        while True:
            places = [place for place in await self._cluster.look() if self._lacks(place)]
            free = await self._cluster.free() if places else {}
            for place in places:
                yield await self._meet(place, free.get(place.key, 0))
            await asyncio.sleep(LOOK_S)

    def _lacks(self, place: RayNodeInfo) -> bool:
        """Whether it shall get an agent now. What is known of its node is brought up to date."""
        if not place.alive:
            self._nodes.pop(place.key, None)
            return False
        known = self._nodes.get(place.key)
        if known:
            known.drains = place.drains
        return not place.drains and (known is None or (known.lost_s != float("inf") and not known.rests))

    async def _meet(self, place: RayNodeInfo, free: int) -> RayNode:
        """An agent for a node that lacks one."""
        known, why, actor = self._nodes.get(place.key), "", None
        try:
            workers, cpus = capacity(place.cpus, free, self._bound(place), self._workers if place.here else None)
            actor = await self._cluster.actor(place, RayAgent, self._make_pool, workers, cpus=cpus)
        except NodeRefused as error:
            why = str(error)
        made = RayNode(place.name, actor, authenticated=not self._cluster.unauthenticated, why=why)
        self._nodes[place.key] = made
        if known and actor and known.lost_s - known.made_s < STEADY_S:
            made.tries = known.tries + 1
        return made

    async def close(self) -> None:
        if self._entered:
            self._entered = False
            await self._cluster.leave()
