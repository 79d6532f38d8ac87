"""The nodes of a Ray cluster as those that judge programs, with an agent of ours on each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Protocol

from overlap.cluster.agent import Agent
from overlap.cluster.capacity import capacity
from overlap.cluster.nodes import Facts, Node, NodeParcel, NodeRefused, NodeReply, RayNodeInfo, code_digest
from overlap.cluster.ray_cluster import LOOK_S, RayActor, RayCluster
from overlap.cluster.wire import pack_parcel, unpack_parcel
from overlap.verify import JudgePool
from sandbox.core import Isolation
from sandbox.errors import IsolationUnavailable, SandboxError

AGAIN_S, AGAIN_MAX_S, STEADY_S = 5.0, 300.0, 60.0
"""A node whose agent was lost gets another one after so long; twice as long each time, until one has lived steadily."""
_ROUNDS = 5
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
        workers, isolation=isolation, packages=packages, stop_at_first_failure=not all_cases, judge_once=judge_once
    )


class SandboxAgent(Agent):
    """An :class:`Agent` that reads its parcels as they travel, with what ``make_pool`` makes for so many workers."""

    def __init__(self, make_pool: MakePool, workers: int) -> None:
        pool = make_pool(workers)
        super().__init__(lambda: pool, pool.workers)

    async def exchange_packed(self, packed: bytes) -> NodeReply:
        return await self.exchange(unpack_parcel(packed))


async def why_unusable(actor: RayActor, *, authenticated: bool) -> str:
    """Why an agent's node cannot be used, "" where it can. ``authenticated``: its Ray has to ask for a token."""
    asks, code = await actor.ask("identity")
    if authenticated and not asks:
        return "its Ray lets everybody in; join it with RAY_AUTH_MODE=disabled only where that is meant"
    return "" if code == code_digest() else "another version of this package, or of Python, is installed there"


class RayNode:
    """A :class:`~overlap.cluster.nodes.Node`; one without an actor, which it gets not for the reason ``why``."""

    def __init__(self, name: str, actor: RayActor | None, *, authenticated: bool, why: str = "") -> None:
        self.name, self._actor, self._authenticated, self._why = name, actor, authenticated, why
        self.drains = False
        self.made_s, self.lost_s = time.monotonic(), float("inf")
        self.tries = 0
        """Agents that its machine had before, none of which lived long."""

    async def hello(self) -> Facts:
        if self._actor is None:
            raise NodeRefused(self._why)
        if fault := await why_unusable(self._actor, authenticated=self._authenticated):
            raise NodeRefused(fault)
        try:
            facts: Facts = await self._actor.call("hello")
        except IsolationUnavailable as error:
            raise NodeRefused(f"it cannot isolate programs as verify.isolation asks: {error}") from error
        except SandboxError as error:
            raise NodeRefused(f"its sandbox does not work: {type(error).__name__}: {error}") from error
        clock_s, error_s = await _offset(self._actor)
        return facts._replace(clock_s=clock_s, error_s=error_s)

    async def exchange(self, parcel: NodeParcel) -> NodeReply:
        assert self._actor is not None
        reply: NodeReply = await self._actor.call("exchange_packed", pack_parcel(parcel))
        return reply

    def nudge(self) -> None:
        assert self._actor is not None
        self._actor.nudge()

    async def close(self) -> None:
        self.lost_s = time.monotonic()
        if self._actor is not None:
            await self._actor.end()

    @property
    def rests(self) -> bool:
        """Whether its machine gets another agent, but not yet."""
        return time.monotonic() - self.lost_s < float(min(AGAIN_MAX_S, AGAIN_S * 2.0**self.tries))


async def _offset(actor: RayActor) -> tuple[float, float]:
    """How far an agent's monotonic clock is ahead of ours, s, and by how much that may be wrong: half of the quickest
    of some rounds (Cristian, "Probabilistic clock synchronization", 1989).
    """
    rounds = []
    for _ in range(_ROUNDS):
        before = time.monotonic()
        there = await actor.call("clock")
        after = time.monotonic()
        rounds.append((after - before, there - (before + after) / 2))
    took, ahead = min(rounds)
    return ahead, took / 2


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
            make = partial(SandboxAgent, self._make_pool, workers)
            actor = await self._cluster.actor(place, make, CLOSE_S, cpus=cpus)
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
