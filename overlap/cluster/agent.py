"""What runs on a node: a sandbox of its own, and the jobs that the driver sent. No Ray in here.

consumes  parcels of jobs            produces  an answer to each, in the order in which they end
waits     in ``collect`` for the first answer, for ``BEAT_S`` at most; woken by it
ends      with ``close``, or with its process: the sandbox's processes watch for that; its owner ends it if ``orphaned``
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from overlap.clock import now
from overlap.cluster.nodes import (
    BEAT_S,
    HELLO_S,
    NOTHING,
    Facts,
    JobParcel,
    NodeAnswer,
    NodeJob,
    NodeReply,
)
from overlap.cluster.orphans import uncalled
from overlap.verify import PROBE, PROBE_PROGRAM, GuardedPool, JudgePool
from sandbox.core import Problem
from sandbox.errors import ProblemLost, to_wire
from sandbox.pool import cores


class Agent:
    """``make_pool`` makes a ``sandbox.Pool`` or its like, which judges ``workers`` programs at once."""

    def __init__(self, make_pool: Callable[[], JudgePool], workers: int) -> None:
        self._pool, self._workers = GuardedPool(make_pool()), workers
        self._problems: dict[str, Problem] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._answers: list[NodeAnswer] = []
        self._some = asyncio.Event()
        self._epoch = self._opened = 0
        self._early: dict[int, JobParcel] = {}
        self._called_s = 0.0

    async def hello(self) -> Facts:
        """Facts of this node; the tier is that of a program that was judged. Raises SandboxError."""
        self._called_s = now() + HELLO_S  # nobody calls meanwhile
        await self._pool.open()
        judged = await self._pool.judge(PROBE, PROBE_PROGRAM)
        self._called_s = now()
        return Facts(cores(), self._workers, judged.tier)

    async def clock(self) -> float:
        """This machine's monotonic clock, s."""
        return now()

    async def send(self, parcel: JobParcel) -> None:
        """Take jobs in, and take back those that nobody wants; in the order in which that was said."""
        self._called_s = now()
        if parcel.epoch != self._epoch or parcel.order <= self._opened:
            return
        self._early[parcel.order] = parcel
        while (due := self._early.pop(self._opened + 1, None)) is not None:
            self._opened += 1
            self._open(due)

    def _open(self, parcel: JobParcel) -> None:
        self._problems |= parcel.problems
        for number in parcel.withdrawn:
            if (task := self._tasks.pop(number, None)) is not None:
                task.cancel()
        for job in parcel.jobs:
            problem = self._problems.get(job.problem)
            self._tasks[job.number] = asyncio.create_task(self._judge(job, problem), name=f"job {job.number}")
        for digest in parcel.forgotten:
            self._problems.pop(digest, None)

    async def collect(self, parcel: JobParcel = NOTHING) -> NodeReply:
        """Take jobs in; the answers since the last call, as soon as there is one; none after ``BEAT_S``."""
        asked_s, some = now(), self._some
        await self.send(parcel)
        if parcel.epoch != self._epoch:
            return NodeReply((), asked_s, now())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BEAT_S):
                await some.wait()
        if some is not self._some:
            return NodeReply((), asked_s, now())  # asked before a reset: nobody hears this any more
        answers, self._answers = self._answers, []
        self._some.clear()
        return NodeReply(answers, asked_s, now(), len(self._tasks), self._opened)

    async def reset(self, epoch: int) -> None:
        """Drop every job, answer and problem of before that epoch."""
        self._called_s = now()
        if epoch > self._epoch:
            self._epoch = epoch
            await self._drop()

    async def _drop(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        for kept in (self._tasks, self._problems, self._answers, self._early):  # before others come
            kept.clear()
        self._opened = 0
        self._some.set()
        self._some = asyncio.Event()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def orphaned(self) -> None:
        """Return when nobody has called for ``ORPHAN_S``."""
        await uncalled(lambda: self._called_s)

    async def close(self) -> None:
        """End the sandbox."""
        await self._drop()
        await self._pool.close()

    async def _judge(self, job: NodeJob, problem: Problem | None) -> None:
        try:
            if problem is None:
                raise ProblemLost(f"the problem {job.problem[:12]} did not reach the node")
            judgement = await self._pool.judge(problem, job.program, turn=job.turn)
            answer = NodeAnswer(job.number, job.attempt, judgement, None, now())
        except Exception as error:  # also one that is no SandboxError: a job without an answer waits for ever
            answer = NodeAnswer(job.number, job.attempt, None, to_wire(error), now())
        if self._tasks.get(job.number) is asyncio.current_task():
            del self._tasks[job.number]
        self._answers.append(answer)
        self._some.set()
