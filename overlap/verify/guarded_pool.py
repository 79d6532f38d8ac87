"""A sandbox pool that stops answering is killed, so that no sample waits for ever."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Protocol, runtime_checkable

from overlap.core import ClusterFigures
from overlap.process import process_tree
from sandbox.core.nouns import Judgement, Program
from sandbox.core.problem import Problem
from sandbox.pool.schedule import longest_s

SPARE_S = 30.0
"""Seconds in ``job_limit_s`` for the start of a worker, transport, and clean-up."""
CANCEL_S = 5.0
"""Seconds that a cancelled sample waits for its job to be withdrawn."""


class JudgePool(Protocol):
    """The methods of ``sandbox.Pool`` that the verifier needs."""

    async def __aenter__(self) -> Any: ...

    async def __aexit__(self, *exc_info: Any) -> Any: ...

    async def judge(self, problem: Problem, program: Program, *, turn: int = 0) -> Judgement: ...

    def pids(self) -> tuple[int, ...]: ...


@runtime_checkable
class MultiNodePool(JudgePool, Protocol):
    """A pool over the nodes of a cluster."""

    @property
    def concurrency(self) -> int:
        """Number of programs that all nodes judge in parallel now."""

    def take_nodes(self) -> ClusterFigures:
        """Figures of the nodes since the last call."""


def job_limit_s(problem: Problem) -> float:
    """Wall seconds after which the sandbox itself would have given up the job, and SPARE_S more."""
    return longest_s(problem) + SPARE_S


class GuardedPool:
    """A pool whose processes are killed when no job has ended for as long as its longest job may take; all jobs that it
    has fail then.
    """

    def __init__(self, pool: JudgePool) -> None:
        self._pool = pool
        self.over_nodes = pool if isinstance(pool, MultiNodePool) else None
        """The pool, where it is one over several nodes."""
        self._asking = 0
        self._answered_s = self._longest_s = 0.0

    async def open(self) -> None:
        """Start the pool. Raises what the pool raises."""
        await self._pool.__aenter__()

    async def judge(self, problem: Problem, program: Program, *, turn: int = 0) -> Judgement:
        """Judge a program in the pool. Cancelling this withdraws the job. Raises SandboxError."""
        if self.over_nodes is not None:  # each of its nodes does so itself
            return await self.over_nodes.judge(problem, program, turn=turn)
        self._longest_s = max(self._longest_s, job_limit_s(problem))
        if not self._asking:
            self._answered_s = time.monotonic()
        job = asyncio.ensure_future(self._pool.judge(problem, program, turn=turn))
        job.add_done_callback(lambda done: done.cancelled() or done.exception())  # seen, also if we are cancelled
        self._asking += 1
        try:
            while not job.done():
                left = self._answered_s + self._longest_s - time.monotonic()
                if left <= 0:
                    self._answered_s = time.monotonic()
                    await asyncio.to_thread(process_tree.kill_tree, self.pids(), 5.0, reap=False)
                else:
                    await asyncio.wait([job], timeout=left)
            return job.result()
        finally:
            self._asking -= 1
            if job.done():
                self._answered_s = time.monotonic()
            elif job.cancel():
                await asyncio.wait([job], timeout=CANCEL_S)

    def pids(self) -> tuple[int, ...]:
        """Processes of the pool on this machine."""
        return self._pool.pids()

    async def close(self) -> None:
        """Close the pool, however long that takes: the caller sets a limit."""
        await self._pool.__aexit__(None, None, None)
