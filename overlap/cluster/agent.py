"""What runs on a node: a sandbox of its own, and the jobs that the driver sent. No Ray in here.

consumes  parcels of jobs            produces  an answer to each, in the order in which they end
waits     in ``exchange`` for the first answer, for as long as the parcel says; woken by it, and by ``nudge``
ends      with ``close``, or with its process: the sandbox's processes watch for that
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections.abc import Callable

from overlap.clock import now
from overlap.cluster.nodes import Facts, NodeAnswer, NodeJob, NodeParcel, NodeReply
from overlap.verify import PROBE, PROBE_PROGRAM, GuardedPool, JudgePool
from sandbox.core import Problem
from sandbox.errors import ProblemLost, to_wire
from sandbox.pool import cores


class Agent:
    """``make_pool`` makes a ``sandbox.Pool`` or its like, which judges ``workers`` programs at once; further jobs wait
    here, where they can be given back.
    """

    def __init__(self, make_pool: Callable[[], JudgePool], workers: int) -> None:
        self._pool, self._workers = GuardedPool(make_pool()), workers
        self._problems: dict[str, Problem] = {}
        self._waiting: list[tuple[int, int, NodeJob, Problem | None]] = []
        self._running: dict[int, asyncio.Task[None]] = {}
        self._answers: list[NodeAnswer] = []
        self._some = asyncio.Event()

    async def hello(self) -> Facts:
        """Facts of this node; the tier is that of a program that was judged. Raises SandboxError."""
        await self._pool.open()
        judged = await self._pool.judge(PROBE, PROBE_PROGRAM)
        return Facts(cores(), self._workers, judged.tier)

    async def clock(self) -> float:
        """This machine's monotonic clock, s."""
        return now()

    async def exchange(self, parcel: NodeParcel) -> NodeReply:
        """Take jobs in, and take back those that nobody wants; the answers since the last call, once there is one or
        the parcel's time is over.
        """
        asked_s = now()
        self._problems |= parcel.problems
        for number in parcel.withdrawn:
            if (task := self._running.pop(number, None)) is not None:
                task.cancel()
        if parcel.withdrawn:
            gone = set(parcel.withdrawn)
            self._waiting = [entry for entry in self._waiting if entry[1] not in gone]
            heapq.heapify(self._waiting)
        for job in parcel.jobs:
            heapq.heappush(self._waiting, (job.turn, job.number, job, self._problems.get(job.problem)))
        for digest in parcel.forgotten:
            self._problems.pop(digest, None)
        self._begin()
        returned = self._give_back(parcel.spare)
        if not (self._answers or returned):
            self._some.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(parcel.wait_s):
                    await self._some.wait()
        answers, self._answers = self._answers, []
        return NodeReply(answers, returned, len(self._running) + len(self._waiting), asked_s, now())

    async def nudge(self) -> None:
        """Have ``exchange`` wait no longer."""
        self._some.set()

    def _give_back(self, most: int) -> list[int]:
        """The jobs that would begin last, which are no longer ours."""
        self._waiting.sort()  # a sorted list is a heap
        cut = max(0, len(self._waiting) - most)
        given, self._waiting = self._waiting[cut:], self._waiting[:cut]
        return [number for _, number, *_ in given]

    def _begin(self) -> None:
        while self._waiting and len(self._running) < self._workers:
            _, number, job, problem = heapq.heappop(self._waiting)
            self._running[number] = asyncio.create_task(self._judge(job, problem), name=f"job {number}")

    async def _judge(self, job: NodeJob, problem: Problem | None) -> None:
        try:
            if problem is None:
                raise ProblemLost(f"the problem {job.problem[:12]} did not reach the node")
            judgement = await self._pool.judge(problem, job.program, turn=job.turn)
            answer = NodeAnswer(job.number, judgement, None, now())
        except asyncio.CancelledError:
            self._begin()
            raise
        except Exception as error:  # also one that is no SandboxError: a job without an answer waits for ever
            answer = NodeAnswer(job.number, None, to_wire(error), now())
        del self._running[job.number]
        self._answers.append(answer)
        self._some.set()
        self._begin()

    async def close(self) -> None:
        """End the sandbox."""
        self._waiting.clear()
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._pool.close()
