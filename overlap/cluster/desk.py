"""The driver's side of one node: what is sent to it, what comes back, and whether it still speaks.

A node that is silent may be dead, frozen or cut off, and may come back with answers. So its jobs go elsewhere at once,
and before it gets another one it has dropped what it had; what it says of that in between is of an earlier attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from overlap.clock import now
from overlap.cluster.bound import Bound, bounded
from overlap.cluster.nodes import (
    HELLO_S,
    NOTHING,
    ORPHAN_S,
    SILENT_S,
    Facts,
    JobParcel,
    Node,
    NodeAnswer,
    NodeJob,
    NodeLost,
    NodeSilent,
)
from overlap.cluster.offset import Offset
from overlap.cluster.pacer import Pacer
from overlap.cluster.problems import NodeProblems
from sandbox.core import Problem

PACE_S, CALL_S, SHARE = 0.05, 0.0005, 0.3
"""A call costs the driver so much of a core, and all calls at most this share of one."""
WORTH, PACE_LONG_S = 0.01, 1.0
"""A job's answer may be late by such a share of what it took, and by so much."""
MEAN_OF = 4
"""Jobs of each worker that the mean is taken of."""
PARCEL_BYTES, LIGHT_BYTES = 16 << 20, 256 << 10
"""A parcel with so much in it is full; one with more than the second is heavy: it may take long on its way, and goes by
a call that brings nothing back. Meanwhile the others say that the node is there.
"""
SLOW = 128 << 10
"""Bytes per second of the slowest network that a heavy parcel has time for."""
FAULTS_MAX = 3
"""So many jobs in a row that fail by a node's fault, and it is lost: it fails jobs faster than others do them."""
GIVEN_UP_S = ORPHAN_S
"""A node that has been silent for so much longer is lost: its agent has ended itself."""


def pace_s(nodes: int, mean_s: float = 0.0) -> float:
    """Between two calls of a kind to a node, s, of two kinds: what comes meanwhile goes together. Jobs that take
    ``mean_s`` there can wait for others a little.
    """
    return max(PACE_S, 2 * CALL_S * nodes / SHARE, min(PACE_LONG_S, WORTH * mean_s))


class Desk:
    """See the module. ``take`` is given the answers of each call; ``pace`` says what ``pace_s`` is for this desk,
    and ``pacer`` is one for all.

    One call brings answers back and takes along what has come to be sent. What comes while it waits for the first
    answer goes by a call of its own.
    """

    def __init__(
        self,
        node: Node,
        take: Callable[[Desk, Sequence[NodeAnswer]], None],
        pace: Callable[[Desk], float] = lambda desk: PACE_S,
        pacer: Pacer | None = None,
    ) -> None:
        self.node, self._take, self._pace, self._pacer = node, take, pace, pacer or Pacer()
        self.facts, self.offset = Facts(0, 0, ""), Offset()
        self.draining = False
        """It was said that this node shall be let go."""
        self.mean_s, self.ended = 0.0, 0
        """What a job takes there, over the last ones that each worker did; how many have."""
        self._shelf = NodeProblems()
        self._jobs: list[NodeJob] = []
        self._problems: dict[str, tuple[Problem, int]] = {}
        self._withdrawn: list[int] = []
        self._epoch = self._order = self._out = 0
        self._nothing = NOTHING
        self._faults: list[str] = []
        self._waits, self._wake = False, asyncio.Event()

    async def open(self) -> None:
        """Have the node say what it is. Raises NodeLost, NodeRefused, NodeSilent."""
        self.facts = await bounded(self.node.hello(), HELLO_S)
        self.offset = Offset(self.facts.clock_s, self.facts.error_s, now())

    def give(self, job: NodeJob, problem: Problem, size: int = 0) -> None:
        """Have a job sent with the next parcel; its problem, of ``size`` bytes, where that is new there."""
        if self._shelf.take(job.problem):
            self._problems[job.problem] = problem, size
        self._jobs.append(job)
        self._out += 1
        if self._waits:
            self._wake.set()

    def withdraw(self, number: int, digest: str) -> None:
        """Nobody wants this job any more."""
        self._put_back(digest)
        self._withdrawn.append(number)
        if self._waits:
            self._wake.set()

    def done(self, digest: str, seconds: float) -> None:
        """A job that needed this problem has ended there."""
        self._put_back(digest)
        self._faults.clear()
        if seconds:  # else it was judged before
            self.ended += 1
            self.mean_s += (seconds - self.mean_s) / min(self.ended, max(1, MEAN_OF * self.facts.workers))

    def failed(self, digest: str, why: str, *, node: bool) -> None:
        """A job has failed there, by a fault of the node or by its own."""
        self._put_back(digest)
        if node:
            self._faults.append(why)

    def _put_back(self, digest: str) -> None:
        self._shelf.put_back(digest)
        self._out -= 1

    async def work(self) -> None:
        """Send and collect until the node is lost. Raises NodeLost, NodeSilent, and what ``take`` raises."""
        self._waits, bounds = False, (Bound(SILENT_S), Bound(SILENT_S))
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._send(bounds[0]))
                tasks.create_task(self._collect(bounds[1]))
        finally:
            for bound in bounds:
                bound.close()

    async def again(self) -> None:
        """Wait until the node speaks again, and have it drop what it had. Raises NodeLost."""
        self._clear()
        self._shelf.clear()
        self._faults.clear()
        self._epoch, self._order = self._epoch + 1, 0
        self._nothing = JobParcel(epoch=self._epoch)
        try:
            await bounded(self.node.reset(self._epoch), GIVEN_UP_S)
        except NodeSilent:
            raise NodeLost(f"silent for {GIVEN_UP_S:g} s more") from None

    async def _send(self, bound: Bound) -> None:
        while True:
            await self._wake.wait()
            began, (parcel, size) = now(), self._parcel(PARCEL_BYTES)
            if size > LIGHT_BYTES:
                await bounded(self.node.send(parcel), SILENT_S + size / SLOW)
            else:
                with bound:
                    await self.node.send(parcel)
            await self._pacer.sleep(self._pace(self) - (now() - began))

    def _parcel(self, most: int) -> tuple[JobParcel, int]:
        """What is to be sent, and the bytes in it: up to ``most``, and the last job as a whole where that is as much as
        a parcel holds.
        """
        self._wake.clear()
        if not self._jobs and not self._withdrawn:
            return self._nothing, 0
        gone, surplus = set(self._withdrawn), self._shelf.surplus()
        for digest in surplus:
            self._problems.pop(digest, None)
        waiting = [job for job in self._jobs if job.number not in gone] if gone else self._jobs
        problems: dict[str, Problem] = {}
        full = sent = 0
        while sent < len(waiting) and full < most:
            digest, size = waiting[sent].problem, len(waiting[sent].program.source)
            problem, new = self._problems.get(digest, (None, 0))
            if most < PARCEL_BYTES and full + size + new > most:
                break
            sent, full = sent + 1, full + size + new
            if problem is not None:
                problems[digest] = problem
                del self._problems[digest]
        self._jobs, withdrawn, self._withdrawn = waiting[sent:], self._withdrawn, []
        if self._jobs:
            self._wake.set()
        if not (sent or surplus or withdrawn):
            return self._nothing, 0
        self._order += 1
        return JobParcel(waiting[:sent], problems, surplus, withdrawn, self._epoch, self._order), full

    def _clear(self) -> None:
        self._jobs, self._problems, self._withdrawn, self._out = [], {}, [], 0

    async def _collect(self, bound: Bound) -> None:
        while True:
            began, (parcel, _) = now(), self._parcel(LIGHT_BYTES)
            self._waits = True
            with bound:
                reply = await self.node.collect(parcel)
            self._waits = False
            self.offset.note(began, reply.asked_s, reply.said_s, now())
            lacks = reply.opened == self._order and reply.has + len(reply.answers) < self._out - len(self._jobs)
            self._take(self, reply.answers)
            if lacks:
                raise NodeSilent("it has lost jobs that it was given")
            if len(self._faults) >= FAULTS_MAX:
                raise NodeLost(f"{len(self._faults)} jobs in a row failed there: {self._faults[-1]}")
            pace = self._pace(self)  # of many nodes, also behind a call that waited longer: else each brings one answer
            await self._pacer.sleep(max(pace - PACE_S, pace - (now() - began)))
