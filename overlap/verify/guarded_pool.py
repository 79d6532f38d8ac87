"""A sandbox pool that stops answering is killed, so that no sample waits for ever; and the figures of a cluster's
nodes.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from overlap.process import process_tree
from sandbox.core import Judgement, Problem, Program
from sandbox.pool import longest_s

SPARE_S = 30.0
"""Seconds in ``job_limit_s`` for the start of a worker, transport, and clean-up."""
CANCEL_S = 5.0
"""Seconds that a cancelled sample waits for its job to be withdrawn."""


class NodeFigures(NamedTuple):
    """One node since the last report: programs ``judged`` and the seconds that they ran, and jobs that were ``lost``
    with it and sent elsewhere. ``workers``: programs judged in parallel, 0 where the node is gone. ``clock_s``: seconds
    by which its clock is ahead of the driver's, with an error of at most ``error_s``.
    """

    node: str
    workers: int = 0
    tier: str = ""
    judged: int = 0
    run_s: float = 0.0
    lost: int = 0
    clock_s: float = 0.0
    error_s: float = 0.0

    def busy_share(self, seconds: float) -> float:
        """Share of its workers' time over ``seconds`` in which they ran programs; 0 where the node is gone."""
        return self.run_s / (self.workers * seconds) if self.workers and seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class ClusterFigures:
    """Every node that is in the cluster or did anything within the last ``seconds``."""

    seconds: float
    nodes: tuple[NodeFigures, ...]


class JudgePool(Protocol):
    """The methods of ``sandbox.Pool`` that the verifier needs. A pool with several nodes also has ``concurrency`` and
    ``take_nodes``; see ``GuardedPool``.
    """

    async def __aenter__(self) -> Any: ...

    async def __aexit__(self, *exc_info: Any) -> Any: ...

    async def judge(self, problem: Problem, program: Program, *, turn: int = 0) -> Judgement: ...

    def pids(self) -> tuple[int, ...]: ...


def job_limit_s(problem: Problem) -> float:
    """Wall seconds after which the sandbox itself would have given up the job, and SPARE_S more."""
    return longest_s(problem) + SPARE_S


class GuardedPool:
    """A pool whose processes are killed when no job has ended for as long as its longest job may take; all jobs that it
    has fail then.
    """

    def __init__(self, pool: JudgePool) -> None:
        self._pool = pool
        self._asking = 0
        self._answered_s = self._longest_s = 0.0

    async def open(self) -> None:
        """Start the pool. Raises what the pool raises."""
        await self._pool.__aenter__()

    async def judge(self, problem: Problem, program: Program, *, turn: int = 0) -> Judgement:
        """Judge a program in the pool. Cancelling this withdraws the job. Raises SandboxError."""
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
    def concurrency(self) -> int | None:
        """Number of programs judged in parallel now, by a pool of several nodes; None for a pool of this machine."""
        found: int | None = getattr(self._pool, "concurrency", None)
        return found

    def take_nodes(self) -> ClusterFigures | None:
        """Figures of the cluster's nodes since the last call; None without a cluster."""
        take = getattr(self._pool, "take_nodes", None)
        return take() if take else None

    async def close(self) -> None:
        """Close the pool, however long that takes: the caller sets a limit."""
        await self._pool.__aexit__(None, None, None)
