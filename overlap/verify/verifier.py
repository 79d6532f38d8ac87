"""From a trajectory to its reward.

    answer ──▶ task.program ──▶ sandbox pool ──▶ Judgement ──▶ task.reward ──▶ Scored
                   └─ None ──────────────────▶ task.reward in a worker process ──┘

There are three kinds of fault. A fault of the program is a verdict, and becomes a reward. A fault of ours is tried once
more and then masks the sample (reward None); too many of them stop the run. A fault of the user's code or data stops
the run at once, with its place. A checker or interactor that fails on some sample's output is in between: its problem
is reported once and set aside, and its remaining samples are masked.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from overlap.core import ClusterFigures, Prompt, Scored, Task, Trajectory, described_error
from overlap.core.errors import ConfigError, DataError, OverlapError, VerifierError
from overlap.core.user_code import RewardFault, checked_reward, method_name
from overlap.process import process_tree
from overlap.task import Task as BaseTask
from overlap.verify.guarded_pool import GuardedPool, JudgePool, MultiNodePool
from overlap.verify.reward_pool import RewardPool
from overlap.verify.reward_worker import WorkerLost
from sandbox.core.checks import printable
from sandbox.core.nouns import Case, Judgement, Limits, Program, Verdict
from sandbox.core.problem import Problem
from sandbox.errors import (
    CheckerError,
    InvalidProblem,
    IsolationUnavailable,
    PoolClosed,
    SandboxError,
    ToolchainMissing,
)

if TYPE_CHECKING:
    from overlap.config.fields import Config

WINDOW, WINDOW_MIN, MAX_FAILURE_SHARE = 200, 20, 0.05
"""A run stops when more than this share of the last ``WINDOW`` samples, once there are ``WINDOW_MIN``, could not be
judged for our own fault."""
CLOSE_S = 10.0
"""Seconds that the sandbox has to close in order before it is killed."""

PROBE = Problem("probe", "stdio", (Case("2", "2"),))
PROBE_PROGRAM = Program("print(input())")

T = TypeVar("T")


def program_digest(program: Program) -> str:
    """The first 16 hex digits of the SHA-256 of all of a program: equal programs have the same."""
    parts = program.language, program.entry, program.source, *(part for file in program.files for part in file)
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:16]


class SandboxVerifier:
    """Implements :class:`overlap.core.Verifier`. Constructing it starts nothing.

    The sandbox, and the worker processes for rewards that need no sandbox, are started when they are first needed. What
    reward functions print goes to ``log``, their temporary files and the sandbox's to ``scratch``. ``notify`` gets a
    line for a reward that hangs, at its deadline, and for a problem that is set aside. ``pool`` replaces
    ``sandbox.Pool`` by something with the same methods. ``judge_once``: have the sandbox judge equal programs for equal
    problems once, as the samples of a group often are.
    """

    def __init__(
        self,
        cfg: Config,
        task: Task,
        *,
        log: Path | None = None,
        scratch: Path | None = None,
        notify: Callable[[str], None] | None = None,
        pool: Callable[[], JudgePool] | None = None,
        judge_once: bool = True,
    ) -> None:
        self._cfg, self._task, self._judge_once = cfg, task, judge_once
        self.tier = ""
        """Isolation tier of the sandbox, "" until it was used."""
        self._scratch = scratch
        self._make_pool = pool or self._sandbox_pool
        wall_s = Limits(cpu_s=cfg.verify.cpu_s).wall_limit_s
        self._rewards = RewardPool(task, cfg.verify.workers, wall_s, log, scratch, notify)
        self._opening: asyncio.Task[GuardedPool] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._recent: deque[str] = deque(maxlen=WINDOW)
        self._notify = notify
        self._aside: dict[tuple[str, str], str] = {}
        """(prompt, problem) ids that are not judged any more, and why."""

    async def start(self) -> None:
        """Start what the task surely needs, so that a missing sandbox or an unusable task shows before the run.

        Raises VerifierError, or ConfigError where the machine cannot isolate as asked or the task cannot be sent.
        """
        if not isinstance(self._task, BaseTask):
            return
        if type(self._task).program is BaseTask.program:
            await self._rewards.start()
            return
        try:
            _, judgement = await self._judge(PROBE, PROBE_PROGRAM)
        except SandboxError as error:
            raise VerifierError(f"the sandbox does not work: {type(error).__name__}: {error}") from error
        if judgement.verdict is not Verdict.AC:
            what = "; ".join(case.message for case in judgement.cases) or judgement.compile_log
            raise VerifierError(f"the sandbox does not work: a correct program was judged {judgement.verdict}: {what}")
        self.tier = judgement.tier

    async def score(self, trajectory: Trajectory) -> Scored:
        """Reward of a trajectory. Our own failures come back as ``reward=None`` with the cause in ``failure``.

        Raises VerifierError when the task's code fails, when too many samples failed, or when the verifier is closed;
        DataError for a problem that cannot be judged; ConfigError where the machine cannot isolate as asked.
        """
        if self._closing is not None:
            raise VerifierError(f"sample {trajectory.id} was scored after the verifier was closed")
        asked = time.monotonic()
        blank = Scored(trajectory, None, queued_s=asked, started_s=asked, finished_s=asked)
        if trajectory.failure:
            self._note(trajectory.failure)
        if trajectory.failure or trajectory.finish == "abort":
            return replace(blank, failure=trajectory.failure or "aborted")
        prompt = trajectory.request.prompt
        answer = prompt.prefill + trajectory.text
        job = self._ask_task("program", trajectory, lambda: self._task.program(prompt, answer))
        if job is not None and (why := self._aside.get((prompt.id, job[0].id))):
            return replace(blank, failure=why, finished_s=time.monotonic())
        if job is not None:
            blank = replace(blank, program_sha256=program_digest(job[1]))
        try:
            scored = await (self._by_worker(blank, answer) if job is None else self._by_sandbox(blank, answer, *job))
        except (WorkerLost, SandboxError) as error:
            cause = str(error) if isinstance(error, WorkerLost) else f"{type(error).__name__}: {error}"
            if job is None or not isinstance(error, CheckerError) or self._set_aside(prompt, job[0], cause):
                self._note(cause)
            return replace(blank, failure=cause, finished_s=time.monotonic())
        self._note("")
        return replace(scored, failure="masked by the task") if scored.reward is None else scored

    async def judge(self, problem: Problem, program: Program, turn: int = 0) -> Judgement:
        """Judge a program in the same pool, in its ``turn`` (lower ones first). Raises SandboxError after the last try,
        and what ``score`` raises for problems and machines.
        """
        return (await self._judge(problem, program, turn))[1]

    def pids(self) -> tuple[int, ...]:
        """Pids of all child processes."""
        pool = self._open_pool()
        return (*(pool.pids() if pool else ()), *self._rewards.pids())

    @property
    def concurrency(self) -> int:
        """Number of programs judged in parallel now."""
        nodes = self._nodes
        return nodes.concurrency if nodes else self._cfg.verify.workers

    def take_nodes(self) -> ClusterFigures | None:
        """Figures of the cluster's nodes since the last call; None without a cluster."""
        nodes = self._nodes
        return nodes.take_nodes() if nodes else None

    @property
    def _nodes(self) -> MultiNodePool | None:
        pool = self._open_pool()
        return pool.over_nodes if pool else None

    async def close(self) -> None:
        """End every process; takes at most 20 s. Safe to call twice, before ``start``, and to cancel."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name="close verifier")
        await asyncio.shield(self._closing)

    async def _by_worker(self, blank: Scored, answer: str) -> Scored:
        trajectory = blank.trajectory
        try:
            got = await self._rewards.reward(trajectory.request.prompt, answer, trajectory.token_ids)
        except RewardFault as error:
            raise self._task_fault("reward", trajectory, str(error)) from error
        return replace(blank, reward=got.value, started_s=got.started_s, finished_s=got.finished_s)

    async def _by_sandbox(self, blank: Scored, answer: str, problem: Problem, program: Program) -> Scored:
        trajectory, prompt = blank.trajectory, blank.trajectory.request.prompt
        asked, judgement = await self._judge(problem, program, trajectory.request.group)
        finished = time.monotonic()
        self.tier = judgement.tier
        reward = self._ask_task(
            "reward", trajectory, lambda: checked_reward(self._task.reward(prompt, answer, judgement))
        )
        started = min(asked + judgement.queue_s, finished)
        return replace(blank, reward=reward, judgement=judgement, started_s=started, finished_s=finished)

    async def _judge(self, problem: Problem, program: Program, turn: int = 0) -> tuple[float, Judgement]:
        """Returns when the successful try began, and its judgement. The sandbox has found out whose fault a failure is;
        one of ours is tried once more, in another worker, pool or node. Raises SandboxError after that.
        """
        try:
            return await self._judge_now(problem, program, turn)
        except SandboxError as error:
            if isinstance(error, CheckerError) or self._closing is not None:  # that is the fault of the problem
                raise
            if isinstance(error, PoolClosed) and self._open_pool() is not None:
                self._opening = None  # it has closed itself: the next try opens another one
        return await self._judge_now(problem, program, turn)

    async def _judge_now(self, problem: Problem, program: Program, turn: int) -> tuple[float, Judgement]:
        began = time.monotonic()
        try:
            return began, await (await self._sandbox()).judge(problem, program, turn=turn)
        except (InvalidProblem, IsolationUnavailable, ToolchainMissing) as error:
            raise self._no_try_helps(error, problem, program) from error

    def _no_try_helps(self, error: SandboxError, problem: Problem, program: Program) -> OverlapError:
        match error:
            case InvalidProblem():
                return DataError("problem", problem.id, str(error))
            case IsolationUnavailable():
                return ConfigError("verify.isolation", self._cfg.verify.isolation, str(error))
        return VerifierError(f"programs in {program.language} cannot be judged: {error}")

    async def _sandbox(self) -> GuardedPool:
        if self._opening is None or (self._opening.done() and self._open_pool() is None):
            self._opening = asyncio.create_task(self._open(), name="open sandbox")
        return await asyncio.shield(self._opening)  # a cancelled sample leaves it to the others

    async def _open(self) -> GuardedPool:
        if self._closing is not None:
            raise PoolClosed("the verifier is closed")
        pool = GuardedPool(self._make_pool())
        await pool.open()
        return pool

    def _sandbox_pool(self) -> JudgePool:
        from sandbox.pool.pool import Pool as SandboxPool

        verify, packages = self._cfg.verify, tuple(self._task.packages)
        try:
            return SandboxPool(
                workers=verify.workers,
                isolation=verify.isolation,
                packages=packages,
                stop_at_first_failure=not getattr(self._task, "all_cases", False),
                judge_once=self._judge_once,
                directory=str(self._scratch) if self._scratch else "",
            )
        except ToolchainMissing as error:
            raise ConfigError("task.packages", packages, str(error)) from error

    def _open_pool(self) -> GuardedPool | None:
        opening = self._opening
        usable = opening is not None and opening.done() and not opening.cancelled() and opening.exception() is None
        return opening.result() if usable and opening else None

    async def _close(self) -> None:
        await self._rewards.close()
        if self._opening is None:
            return
        await asyncio.wait([self._opening], timeout=CLOSE_S)
        pool = self._open_pool()
        if pool is None:
            self._opening.cancel()
            return
        pids = pool.pids()
        try:
            async with asyncio.timeout(CLOSE_S):
                await pool.close()
        except TimeoutError:
            await asyncio.to_thread(process_tree.kill_tree, pids, 5.0)

    def _ask_task(self, method: str, trajectory: Trajectory, call: Callable[[], T]) -> T:
        """Call the user's code; any error of it names the method and the sample."""
        try:
            return call()
        except Exception as error:  # the user's code can raise anything
            if isinstance(error, InvalidProblem):
                raise DataError("problem", trajectory.request.prompt.id, str(error)) from error
            raise self._task_fault(method, trajectory, described_error(error)) from error

    def _task_fault(self, method: str, trajectory: Trajectory, what: str) -> VerifierError:
        name = method_name(self._task, method)
        return VerifierError(f"{name} {what}, for sample {trajectory.id} of prompt {trajectory.request.prompt.id!r}")

    def _set_aside(self, prompt: Prompt, problem: Problem, cause: str) -> bool:
        """Judge no more samples of this problem. Returns True the first time; samples already in hand count as no
        failure.
        """
        first = (prompt.id, problem.id) not in self._aside
        if first:
            self._aside[prompt.id, problem.id] = f"the problem was set aside: {cause}"
            if self._notify is not None:
                place = f" ({prompt.place})" if prompt.place else ""
                self._notify(f"problem {problem.id!r}{place} is set aside, samples masked: {printable(cause)[:500]}")
        return first

    def _note(self, cause: str) -> None:
        """Record the failure of a sample, "" for none. Raises VerifierError when too many of the last ones failed by
        our fault.
        """
        self._recent.append(cause)
        if not cause:
            return
        causes = Counter(filter(None, self._recent))
        failed, seen, limit = causes.total(), len(self._recent), MAX_FAILURE_SHARE
        if seen >= WINDOW_MIN and failed > limit * seen:
            most, times = causes.most_common(1)[0]
            raise VerifierError(
                f"{failed} of the last {seen} samples could not be judged, and {limit:.0%} may; "
                f"most frequent, {times} times: {most}"
            )
