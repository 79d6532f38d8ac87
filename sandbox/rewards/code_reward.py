"""The reward of an answer that should hold a program: a plain callable for any trainer.

answer ──▶ program ─┐
                    ├──▶ the process's pool ──▶ Judgement ──▶ reward
tests ──▶ Problem ──┘

reward = CodeReward()
reward("```python\\nprint(input())\\n```", {"inputs": ["7"], "outputs": ["7"]})     1.0
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

from sandbox.client.client import Client
from sandbox.core.nouns import Limits, Program
from sandbox.core.problem import Problem
from sandbox.errors import AccessDenied, InvalidProblem, SandboxError
from sandbox.pool.pool import Pool
from sandbox.rewards.answer_text import program_of_answer
from sandbox.rewards.ground_truth import problem_in, problem_of
from sandbox.rewards.outcome import Outcome, all_or_nothing, share_of_cases
from sandbox.rewards.process_pool import process_pool

_LOG: Final = logging.getLogger("sandbox.rewards")


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
