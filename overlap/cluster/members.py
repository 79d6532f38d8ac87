"""The nodes of a Ray cluster that judge: an agent on each, replaced when it is lost. This module imports no Ray.

How many programs a node judges at once is one for each core that is free there:

    cores that Ray counts there ── others have taken some ── our engines and ranks are bound to some ──▶ free

On the driver's own machine, where engine and learner run, it is ``verify.workers``, as without a cluster. The cores of
an agent are taken off Ray's count, so that no other actor gets them; the node itself bounds them by what a process may
use there (affinity, control groups), as it does on one machine.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from functools import partial

from overlap.cluster.agent import MakePool, NodeJudge
from overlap.cluster.nodes import Facts, NodeParcel, NodeRefused, NodeReply, RayNodeInfo
from overlap.cluster.ray_cluster import LOOK_S, RayActor, RayCluster
from overlap.core.clock import now
from sandbox.errors import IsolationUnavailable, SandboxError
from sandbox.pool.pool import Pool

AGAIN_S, AGAIN_MAX_S, STEADY_S = 5.0, 300.0, 60.0
"""Seconds until a node whose agent was lost gets another one, doubled each time; their maximum; seconds that an agent
must live to reset them."""
CLOSE_S = 6.0
"""A sandbox ends within 5 s, or is killed."""


class RayNode:
    """A node with an agent of ours, or without one for the reason ``why``. ``tries``: agents that its machine had
    before, none of which lived long.

    Calls raise NodeLost once the agent is gone, or cannot be reached. Where it is silent they wait for ever: the caller
    bounds them, and makes no more calls to it. So a job has one answer, without a record of earlier calls.
    """

    def __init__(self, name: str, actor: RayActor | None, *, why: str = "", tries: int = 0) -> None:
        self.name, self._actor, self._why = name, actor, why
        self.tries, self._made_s = tries, now()
        self.again_s = float("inf")
        """Time at which its machine gets another agent."""

    async def hello(self) -> Facts:
        """Start what judges programs there, and say what it is. Raises NodeRefused."""
        if self._actor is None:
            raise NodeRefused(self._why)
        await self._actor.check()
        try:
            facts: Facts = await self._actor.call("hello")
        except SandboxError as error:
            isolates = "it cannot isolate programs as verify.isolation asks"
            why = isolates if isinstance(error, IsolationUnavailable) else f"its sandbox fails: {type(error).__name__}"
            raise NodeRefused(f"{why}: {error}") from error
        return facts

    async def exchange(self, parcel: NodeParcel) -> NodeReply:
        """Hand over a parcel, packed so that Ray's process need not, and take the reply; one call at a time."""
        assert self._actor is not None
        reply: NodeReply = await self._actor.call("exchange", pickle.dumps(parcel, pickle.HIGHEST_PROTOCOL))
        return reply

    def nudge(self) -> None:
        """Have the call that waits there for a first answer return now."""
        assert self._actor is not None
        self._actor.nudge()

    async def close(self) -> None:
        """End everything that it started, and itself."""
        lost_s = now()
        self.again_s = lost_s + AGAIN_S
        if self._actor is not None:
            self.again_s = lost_s + min(AGAIN_MAX_S, AGAIN_S * 2.0**self.tries)
            self.tries = self.tries + 1 if lost_s - self._made_s < STEADY_S else 0
            await self._actor.end()


class RayMembers:
    """The nodes of a cluster that judge, with a pool of ``make_pool`` on each. ``workers``: programs that this machine
    judges at once; each further one judges with all of its free cores, and ``bound`` says how many cores engines and
    learner ranks of ours use there.
    """

    def __init__(
        self,
        cluster: RayCluster,
        make_pool: MakePool = Pool,
        *,
        workers: int | None = None,
        bound: Callable[[RayNodeInfo], int] = lambda place: 0,
    ) -> None:
        self._cluster, self._entered = cluster, AsyncExitStack()
        self._make_pool, self._workers, self._bound = make_pool, workers, bound
        self._nodes: dict[str, RayNode] = {}

    async def joined(self) -> AsyncIterator[RayNode]:
        """Every node that is there, then each that joins, with an agent on it."""
        await self._entered.enter_async_context(self._cluster)
        while True:
            for place in await self._cluster.look():
                if self._lacks(place):
                    yield await self._meet(place)
            await asyncio.sleep(LOOK_S)

    def _lacks(self, place: RayNodeInfo) -> bool:
        """Forget a node that is gone, and return whether the place shall get an agent now."""
        if not place.alive:
            self._nodes.pop(place.key, None)
        elif known := self._nodes.get(place.key):
            return now() >= known.again_s
        return place.alive

    async def _meet(self, place: RayNodeInfo) -> RayNode:
        """An agent for a node that lacks one."""
        known, bound, actor, why = self._nodes.get(place.key), self._bound(place), None, ""
        left = max(0, place.free - bound)
        workers = self._workers if place.here and self._workers is not None else left
        if workers:  # on this machine also where Ray lends none of its cores
            make, cpus = partial(NodeJudge, self._make_pool, workers), min(workers, left)
            actor = await self._cluster.actor(place, make, CLOSE_S, cpus=cpus)
        else:
            ours = f", engines and learner ranks of this run {min(bound, place.free)}" if bound else ""
            why = f"no core of it is free: Ray counts {place.cpus}, others have {place.cpus - place.free}{ours}"
        made = self._nodes[place.key] = RayNode(place.name, actor, why=why, tries=known.tries if known else 0)
        return made

    async def close(self) -> None:
        """Leave the cluster."""
        await self._entered.aclose()
