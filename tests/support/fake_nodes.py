"""Doubles of nodes: they judge nothing, answer after a time, and die, freeze and come back as they are told.

For studies of the driver and for tests, with a pool over them; they need no more than an event loop, so a virtual clock
will do.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from overlap.cluster.nodes import Facts, NodeAnswer, NodeJob, NodeLost, NodeParcel, NodeRefused, NodeReply
from overlap.cluster.pool import ClusterPool
from overlap.core.clock import now
from sandbox.core.nouns import Case, Judgement, Program, Verdict
from sandbox.core.problem import Problem
from sandbox.errors import ProblemLost, to_wire

Seconds = Callable[[NodeJob], float]
PROBLEMS = [Problem(f"p{i}", "stdio", (Case(str(i), str(i)),)) for i in range(4)]


class FakeNode:
    """A double of ``RayNode`` that judges ``workers`` programs at a time, the lowest turns first; each takes
    ``seconds``. ``judged`` are the numbers of the jobs that ended there, ``received`` its problems by how often they
    were sent. Its clock is ``ahead_s`` ahead.
    """

    def __init__(self, name: str, workers: int, seconds: Seconds, *, refused: str = "", ahead_s: float = 0.0) -> None:
        self.name, self._workers, self._seconds, self._refused = name, workers, seconds, refused
        self.ahead_s = ahead_s
        self.judged: list[int] = []
        self.received = Counter[str]()
        self.closed = False
        self._dead = False
        self._thaws = asyncio.Event()
        self._thaws.set()
        self._problems: set[str] = set()
        self._waiting: list[tuple[int, int, NodeJob]] = []
        """By turn and number."""
        self._running: dict[int, tuple[NodeJob, float]] = {}
        self._ends: list[tuple[float, int]] = []
        """When which job ends; what was taken back is skipped."""
        self.comes_back: Callable[[FakeNode], None] = lambda node: None
        self._timer: asyncio.TimerHandle | None = None
        self._answers: list[NodeAnswer] = []
        self._asks: asyncio.Future[None] | None = None

    def die(self) -> None:
        """It is gone for good."""
        self._dead = True
        self._stop()
        self._thaws.set()

    def freeze(self) -> None:
        """It answers no call until it thaws; what it judges goes on."""
        self._thaws.clear()

    def thaw(self) -> None:
        """It answers again; where it was given up meanwhile, it comes back with another agent."""
        self._thaws.set()
        if self.closed and not self._dead:
            self.closed = False
            self._problems.clear()
            self.comes_back(self)

    async def hello(self) -> Facts:
        await self._reached()
        if self._refused:
            raise NodeRefused(self._refused)
        return Facts(self._workers, self._workers, "A")

    def _accept(self, parcel: NodeParcel) -> None:
        self.received.update(parcel.problems.keys())
        self._problems |= parcel.problems.keys()
        for number in parcel.withdrawn:
            self._running.pop(number, None)
            self._waiting = [entry for entry in self._waiting if entry[1] != number]
        for job in parcel.jobs:
            if job.problem in self._problems:
                self._waiting.append((job.turn, job.number, job))
            else:
                self._answers.append(NodeAnswer(job.number, None, to_wire(ProblemLost(job.problem)), self._clock()))
        self._waiting.sort()
        self._problems -= set(parcel.forgotten)
        self._begin()

    async def exchange(self, parcel: NodeParcel) -> NodeReply:
        await self._reached()
        self._accept(parcel)
        cut = max(0, len(self._waiting) - parcel.spare)
        returned, self._waiting = [number for _, number, *_ in self._waiting[cut:]], self._waiting[:cut]
        if not (self._answers or returned):
            loop = asyncio.get_running_loop()
            asks = self._asks = loop.create_future()
            beat = loop.call_later(parcel.wait_s, _end, asks)
            try:
                await asks
            finally:
                beat.cancel()
            await self._reached()
        answers, self._answers = self._answers, []
        return NodeReply(answers, returned, len(self._running) + len(self._waiting), self._clock())

    def nudge(self) -> None:
        if self._thaws.is_set():
            _end(self._asks)

    def _clock(self) -> float:
        return now() + self.ahead_s

    async def close(self) -> None:
        self.closed = True
        self._stop()

    async def _reached(self) -> None:
        await self._thaws.wait()
        if self._dead:
            raise NodeLost("it was told to die")

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._ends.clear()
        self._running.clear()
        self._waiting.clear()
        self._answers.clear()
        asks, self._asks = self._asks, None
        _end(asks)

    def _begin(self) -> None:
        at_s = now()
        while self._waiting and len(self._running) < self._workers:
            *_, job = self._waiting.pop(0)
            took = self._seconds(job)
            self._running[job.number] = job, took
            heapq.heappush(self._ends, (at_s + took, job.number))
        if self._ends and (self._timer is None or self._ends[0][0] < self._timer.when()):
            if self._timer is not None:
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_at(self._ends[0][0], self._due)

    def _due(self) -> None:
        """One timer for all of its jobs: a driver has none for them, and a thousand nodes would fill its loop."""
        self._timer, at_s = None, now()
        while self._ends and self._ends[0][0] <= at_s:
            running = self._running.get(heapq.heappop(self._ends)[1])
            if running is not None:
                self._end(*running)
        self._begin()

    def _end(self, job: NodeJob, took: float) -> None:
        del self._running[job.number]
        self.judged.append(job.number)
        language, log = job.program.language, job.program.source
        judgement = Judgement(job.problem, Verdict.AC, (), 1, 1, False, "A", language, "", log, 0.0, took)
        self._answers.append(NodeAnswer(job.number, judgement, None, self._clock()))
        _end(self._asks)


def _end(waits: asyncio.Future[None] | None) -> None:
    if waits is not None and not waits.done():
        waits.set_result(None)


class FakeMembers:
    """:class:`~overlap.cluster.members.RayMembers`: those that it is made with, and those that ``add`` brings."""

    def __init__(self, nodes: Sequence[FakeNode] = ()) -> None:
        self._coming: asyncio.Queue[FakeNode] = asyncio.Queue()
        self.closed = False
        for node in nodes:
            self.add(node)

    def add(self, node: FakeNode) -> None:
        """It joins now."""
        self._coming.put_nowait(node)
        node.comes_back = self.add

    async def joined(self) -> AsyncIterator[FakeNode]:
        while True:
            yield await self._coming.get()

    async def close(self) -> None:
        self.closed = True


def program(number: int) -> Program:
    return Program(str(number))


def takes(seconds: float) -> Seconds:
    return lambda job: seconds


class Run:
    """A pool over fake nodes on a virtual clock."""

    def __init__(self, *nodes: FakeNode, once: bool = False) -> None:
        self.nodes, self.members, self.said, self._once = nodes, FakeMembers(nodes), list[str](), once

    async def __aenter__(self) -> ClusterPool:
        self.pool = ClusterPool(self.members, tell=self.said.append, judge_once=self._once)
        return await self.pool.__aenter__()

    async def __aexit__(self, *exc_info: Any) -> None:
        await self.pool.__aexit__()
        assert self.members.closed
        assert all(node.closed for node in self.nodes)


async def many(pool: ClusterPool, count: int) -> list[Judgement]:
    return list(await asyncio.gather(*(pool.judge(PROBLEMS[i % 4], program(i)) for i in range(count))))


def sources(judged: list[Judgement]) -> list[str]:
    return [judgement.compile_log for judgement in judged]  # where a fake node puts the program
