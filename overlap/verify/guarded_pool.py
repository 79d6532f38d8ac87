"""A sandbox that answers nobody is killed, so that no sample waits for ever."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Protocol

from overlap.process import process_tree
from overlap.verify.node_reports import ClusterFigures
from sandbox.core import Judgement, Problem, Program
from sandbox.pool import longest_s

SPARE_S = 30.0
"""Start of a worker, transport, and clearing up, in ``job_limit_s``."""
CANCEL_S = 5.0
"""A cancelled sample waits so long for its job to be withdrawn."""


class JudgePool(Protocol):
    """What the verifier needs of ``sandbox.Pool``."""

    async def __aenter__(self) -> Any: ...

    async def __aexit__(self, *exc_info: Any) -> Any: ...

    async def judge(self, problem: Problem, program: Program, *, turn: int = 0) -> Judgement: ...

    def pids(self) -> tuple[int, ...]: ...


def job_limit_s(problem: Problem) -> float:
    """Wall seconds after which the sandbox itself has given a job up, and spare."""
    return longest_s(problem) + SPARE_S


class GuardedPool:
    """A pool. When it has answered nobody for as long as its longest job may take, its processes are killed, and every
    job that it has fails.
    """

    def __init__(self, pool: JudgePool) -> None:
        self._pool = pool
        self._asking = 0
        self._answered_s = self._longest_s = 0.0

    async def open(self) -> None:
        """Begin. Raises what the pool raises."""
        await self._pool.__aenter__()

    async def judge(self, problem: Problem, program: Program, *, turn: int = 0) -> Judgement:
        """As the pool does; cancelling it withdraws the job. Raises SandboxError."""
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

    @property
    def at_once(self) -> int | None:
        """Programs that it judges at once now, where that is not this machine's alone; None where it is."""
        found: int | None = getattr(self._pool, "at_once", None)
        return found

    def take_nodes(self) -> ClusterFigures | None:
        """What the nodes of its cluster did since the last call; None where it has none."""
        take = getattr(self._pool, "take_nodes", None)
        return take() if take else None

    async def close(self) -> None:
        """End the pool. Blocks until it has; the caller bounds it."""
        await self._pool.__aexit__(None, None, None)
