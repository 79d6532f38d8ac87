"""The reward of an answer that should hold a program: what all integrations are a few lines over.

answer ──▶ program ─┐
                    ├──▶ the process's pool ──▶ Judgement ──▶ reward
truth ──▶ Problem ──┘
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

from sandbox.client.client import Client
from sandbox.core.nouns import Judgement, Limits, Program
from sandbox.core.plain import plain_value
from sandbox.core.problem import Problem
from sandbox.errors import AccessDenied, InvalidProblem, SandboxError
from sandbox.integrations.process_pool import process_pool
from sandbox.pool.pool import Pool
from sandbox.rewards.answer_text import answer_behind, program_of_answer
from sandbox.rewards.ground_truth import problem_in, problem_of
from sandbox.rewards.outcome import Outcome, all_or_nothing, share_of_cases

_LOG: Final = logging.getLogger("sandbox.integrations")


class Unjudged(SandboxError):
    """There is no reward: the data describes no problem, or the sandbox failed. It says nothing about the answer."""


@dataclass(frozen=True, slots=True)
class CodeReward:
    """How answers are rewarded: 1 where the program passes all tests, else 0. It can be pickled.

    An answer without a program in a code fence gets 0 without a run.
    """

    column: str = ""
    """Column of the data that holds the tests (`sandbox.rewards.ground_truth`); "": found."""
    share: bool = False
    """Whether the reward is the share of the tests that pass, all of which run then."""
    language: str = "python"
    cpu_s: float = 4.0
    """CPU seconds per test."""
    compare: str = "tokens"
    """How outputs are compared, where the problem does not say it."""

    def judge(self, answer: str, truth: Any, *, id: str = "problem") -> Future[Outcome]:
        """What becomes of an answer: a Judgement, or the SandboxError in its place; None where it holds no program.
        ``truth`` is a row, of which the column counts, or what `problem_of` reads. Raises nothing; wait for it in any
        thread.
        """
        how: dict[str, Any] = {"limits": Limits(cpu_s=self.cpu_s), "compare": self.compare, "language": self.language}
        found: Future[Any] = Future()
        try:
            if isinstance(truth, Row):
                problem = problem_in(truth.columns, self.column, **how)
            else:
                problem = problem_of(truth, id=id, **how)
            source = program_of_answer(answer, self.language)
        except SandboxError as error:
            found.set_result(error)
            return found
        if not source:
            found.set_result(None)
            return found
        return process_pool().submit(lambda pool: self._judge(pool, problem, Program(source, self.language)))

    def rewards(self, answers: Iterable[tuple[str, Any]]) -> list[float | None]:
        """Rewards of (answer, truth), judged at the same time; None for what could not be judged, which is logged."""
        asked = [self.judge(answer, truth) for answer, truth in answers]
        return [self._reward(future.result()) for future in asked]

    def reward(self, answer: str, truth: Any) -> float:
        """The reward of one answer. Raises Unjudged."""
        return _judged(self._reward(outcome := self.judge(answer, truth).result()), outcome)

    async def reward_later(self, answer: str, truth: Any) -> float:
        """The same in any event loop. Cancelling it cancels the run."""
        outcome = await asyncio.wrap_future(self.judge(answer, truth))
        return _judged(self._reward(outcome), outcome)

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


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a data set, as a truth."""

    columns: Mapping[str, Any]


def rows_of(columns: Mapping[str, Any], count: int) -> list[Row]:
    """The rows of a batch whose columns are lists of ``count`` values; what is no such list is no column."""
    found = {name: values if isinstance(values, list) else plain_value(values) for name, values in columns.items()}
    lists = {name: values for name, values in found.items() if isinstance(values, list) and len(values) == count}
    return [Row({name: values[number] for name, values in lists.items()}) for number in range(count)]


def answer_of(query: str, prompt: str) -> str:
    """What a policy said behind a prompt. Raises Unjudged where the query does not hold it."""
    if (answer := answer_behind(query, prompt)) is None:
        raise Unjudged("the query does not hold its prompt, so nobody knows where the answer begins")
    return answer


def _judged(reward: float | None, outcome: Judgement | SandboxError | None) -> float:
    if reward is None:
        kind = "the data" if isinstance(outcome, InvalidProblem) else type(outcome).__name__
        raise Unjudged(f"{kind}: {outcome}") from (outcome if isinstance(outcome, SandboxError) else None)
    return reward
