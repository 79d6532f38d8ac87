"""The reward of an answer that should hold a program: a plain callable for any trainer.

answer ──▶ program ─┐
                    ├──▶ the process's pool ──▶ Judgement ──▶ reward
tests ──▶ Problem ──┘
The pool belongs to the process, for callers in any thread and any event loop, which open and close nothing:

SANDBOX_URL       servers to judge on, separated by commas        SANDBOX_WORKERS    of the pool; default: one per core
SANDBOX_TOKEN     what they were started with                     SANDBOX_PACKAGES   that its programs may import: numpy

reward = CodeReward()
reward("```python\\nprint(input())\\n```", {"inputs": ["7"], "outputs": ["7"]})     1.0
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import Future, thread  # noqa: F401 - the executors' own end is registered before ours
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from sandbox.client.client import Client
from sandbox.core.nouns import Limits, Program
from sandbox.core.problem import Problem
from sandbox.errors import AccessDenied, InvalidProblem, SandboxError
from sandbox.pool.pool import Pool
from sandbox.rewards.extract import program_of_answer
from sandbox.rewards.ground_truth import problem_in, problem_of
from sandbox.rewards.outcome import Outcome, all_or_nothing, share_of_cases
from sandbox.terminal import current_environment

_LOG: Final = logging.getLogger("sandbox.rewards")
_CLOSE_S: Final = 15.0
T = TypeVar("T")


class Unjudged(SandboxError):
    """No reward: the data describes no problem, or the sandbox failed. It says nothing about the answer."""


@dataclass(frozen=True, slots=True)
class CodeReward:
    """Rewards answers: 1 where the program passes all tests, else 0. It can be pickled.

    An answer without a program in a code fence gets 0 without a run.
    """

    column: str = ""
    """Column of the data that holds the tests (`sandbox.rewards.ground_truth`); "": found."""
    share: bool = False
    """The reward is the share of the tests that pass, all of which run then."""
    language: str = "python"
    cpu_s: float = 4.0
    """CPU seconds per test."""
    compare: str = "tokens"
    """Mode of comparing outputs, where the problem does not name one."""

    def __call__(self, answer: str, tests: Any) -> float:
        """The reward of an answer. ``tests``: a row of the data, or what `problem_of` reads. Raises Unjudged."""
        return _judged(self._reward(outcome := self.judge(answer, tests).result()), outcome)

    async def reward_later(self, answer: str, tests: Any) -> float:
        """The same in any event loop. Cancelling it cancels the run."""
        outcome = await asyncio.wrap_future(self.judge(answer, tests))
        return _judged(self._reward(outcome), outcome)

    def rewards(self, answers: Iterable[tuple[str, Any]]) -> list[float | None]:
        """Rewards of (answer, tests), judged at the same time; None for what could not be judged, which is logged."""
        asked = [self.judge(answer, tests) for answer, tests in answers]
        return [self._reward(future.result()) for future in asked]

    def judge(self, answer: str, tests: Any) -> Future[Outcome]:
        """Return the Outcome: a Judgement, or the SandboxError in its place; None where an answer holds no program.
        Raises nothing; wait for it in any thread.
        """
        how: dict[str, Any] = {"limits": Limits(cpu_s=self.cpu_s), "compare": self.compare, "language": self.language}
        found: Future[Any] = Future()
        try:
            is_row = isinstance(tests, Mapping)
            problem = problem_in(tests, self.column, **how) if is_row else problem_of(tests, **how)
            source = program_of_answer(answer, self.language)
        except SandboxError as error:
            found.set_result(error)
            return found
        if not source:
            found.set_result(None)
            return found
        return process_pool().submit(lambda pool: self._judge(pool, problem, Program(source, self.language)))

    async def _judge(self, pool: Pool | Client, problem: Problem, program: Program) -> Outcome:
        try:
            return await pool.judge(problem, program, stop_at_first_failure=not self.share)
        except SandboxError as error:
            return error

    def _reward(self, outcome: Outcome | None) -> float | None:
        if outcome is None:
            return 0.0
        if isinstance(outcome, AccessDenied):  # of the settings: every answer of the run would be left out
            raise outcome
        if isinstance(outcome, SandboxError):
            _LOG.warning("an answer could not be judged: %s: %s", type(outcome).__name__, outcome)
        return share_of_cases(outcome) if self.share else all_or_nothing(outcome)


def _judged(reward: float | None, outcome: Outcome | None) -> float:
    if reward is None:
        kind = "the data" if isinstance(outcome, InvalidProblem) else type(outcome).__name__
        raise Unjudged(f"{kind}: {outcome}") from (outcome if isinstance(outcome, SandboxError) else None)
    return reward


class ProcessPool:
    """A pool or a client, and the loop that runs it. Constructing it starts a thread and no process."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._pool = pool_from_environment()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sandbox pool", daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[Pool | Client], Coroutine[Any, Any, T]]) -> Future[T]:
        """Start ``work`` with the pool, in its loop. Cancelling the future cancels it."""
        return asyncio.run_coroutine_threadsafe(work(self._pool), self._loop)

    def pids(self) -> tuple[int, ...]:
        """Processes of the pool."""
        return self._pool.pids()

    def close(self) -> None:
        """End the pool with its processes, and the thread."""
        with suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(self._pool.close(), self._loop).result(_CLOSE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSE_S)
        if not self._thread.is_alive():
            self._loop.close()


def pool_from_environment() -> Pool | Client:
    """A client of the servers that SANDBOX_URL names, or else a pool here. Raises ValueError."""
    environ = current_environment()
    if urls := [url.strip() for url in environ.get("SANDBOX_URL", "").split(",") if url.strip()]:
        try:
            return Client(urls, token=environ.get("SANDBOX_TOKEN", ""))
        except ValueError as error:
            raise ValueError(f"SANDBOX_URL: {error}") from error
    workers = environ.get("SANDBOX_WORKERS", "")
    if workers and not (workers.isdecimal() and int(workers)):
        raise ValueError(f"SANDBOX_WORKERS={workers!r}: use a whole number from 1 up")
    packages = tuple(name.strip() for name in environ.get("SANDBOX_PACKAGES", "").split(",") if name.strip())
    return Pool(int(workers) if workers else None, packages=packages)


_LOCK = threading.Lock()
_OWN: list[ProcessPool] = []


def process_pool() -> ProcessPool:
    """The pool of this process: made by the first call, and again in a process that was forked since."""
    with _LOCK:
        if not _OWN:
            _OWN.append(ProcessPool())
        return _OWN[0]


def close_process_pool() -> None:
    """Close this process's pool, if it has one; the next call opens another."""
    with _LOCK:
        if _OWN:
            _OWN.pop().close()


def _forget() -> None:
    """Forget the pool in a forked process: it is the parent's, of which another thread may have held the lock."""
    global _LOCK
    _OWN.clear()
    _LOCK = threading.Lock()


# Before the interpreter's executors end, which the loop needs to close: an `atexit` function comes too late.
threading._register_atexit(close_process_pool)  # type: ignore[attr-defined]
os.register_at_fork(after_in_child=_forget)
