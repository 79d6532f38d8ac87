"""Points by subtask, shares by test, and rewards: pure functions of an outcome."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from sandbox import (
    Case,
    CaseResult,
    CheckerError,
    InvalidProblem,
    Judgement,
    Limits,
    Problem,
    Program,
    Subtask,
    Verdict,
)
from sandbox.errors import Cancelled, WorkerDied
from sandbox.judging.judge import Judge
from sandbox.rewards import outcome as rewards

LIMITS = Limits(cpu_s=2, wall_s=30)
SUBTASKS = (Subtask("small", 30), Subtask("large", 70))
# Echo problems: a case passes when the program echoes its number.
GROUPS = (None, "small", "small", "small", "large", "large")
CASES = tuple(Case(str(n), str(n), group) for n, group in enumerate(GROUPS))


def echo_but(*failing: int) -> Program:
    return Program(f"n = int(input()); print(n if n not in {failing} else -1)")


def judged(judge: Judge, program: Program, *, stop: bool = False, **fields: Any) -> Judgement:
    problem = Problem("p", "stdio", **{"cases": CASES, "subtasks": SUBTASKS, "limits": LIMITS, **fields})
    return replace(judge, stop_at_first_failure=stop).judge(problem, program)


@pytest.mark.parametrize(
    ("failing", "score"), [((), 1.0), ((0,), 1.0), ((2,), 0.7), ((4,), 0.3), ((5, 1), 0.0), ((1, 2, 3), 0.7)]
)
@pytest.mark.parametrize("stop", [False, True])
def test_a_subtask_earns_its_points_when_all_its_cases_pass(
    judge: Judge, failing: tuple[int, ...], score: float, stop: bool
) -> None:
    done = judged(judge, echo_but(*failing), stop=stop)
    assert done.score == pytest.approx(score)
    assert (done.verdict is Verdict.AC) is (not failing)


def test_an_early_stop_ends_the_subtask_and_not_the_problem(judge: Judge) -> None:
    done = judged(judge, echo_but(1), stop=True)
    assert [case.index for case in done.cases] == [0, 1, 4, 5]
    assert (done.passed, done.total) == (3, 6)


PLAIN = {"cases": tuple(Case(str(n), str(n)) for n in range(6)), "subtasks": ()}


@pytest.mark.parametrize(("failing", "share"), [((), 1.0), ((0,), 5 / 6), ((5,), 5 / 6), ((1, 3, 4), 0.5)])
def test_without_subtasks_the_score_is_the_share_of_cases(judge: Judge, failing: tuple[int, ...], share: float) -> None:
    done = judged(judge, echo_but(*failing), **PLAIN)
    assert done.score == done.share == rewards.share_of_cases(done) == rewards.score(done) == pytest.approx(share)
    if failing in ((), (5,)):  # judging stopped behind the last case
        assert judged(judge, echo_but(*failing), stop=True, **PLAIN).score == pytest.approx(share)


@pytest.mark.parametrize("failing", [(0,), (1, 3), (4,)])
def test_a_share_that_was_not_measured_is_not_given(judge: Judge, failing: tuple[int, ...]) -> None:
    """Where judging stopped, 1 of 6 cases passed so far, and nobody knows of how many in all."""
    done = judged(judge, echo_but(*failing), stop=True, **PLAIN)
    assert (done.verdict, len(done.cases)) == (Verdict.WA, failing[0] + 1)
    told = (
        rf"judging stopped after {failing[0] + 1} of 6 cases.*stop_at_first_failure=False .in a Task: all_cases = True"
    )
    for ask in (lambda: done.score, lambda: rewards.score(done), lambda: rewards.share_of_cases(done)):
        with pytest.raises(ValueError, match=told):
            ask()
    assert done.to_json()["score"] is None
    assert Judgement.from_json(json.loads(json.dumps(done.to_json()))) == done


@pytest.mark.parametrize("fields", [PLAIN, {}])
@pytest.mark.parametrize("stop", [False, True])
def test_what_does_not_compile_scores_nothing(judge: Judge, stop: bool, fields: dict[str, Any]) -> None:
    done = judged(judge, Program("1 +"), stop=stop, **fields)
    assert done.score == done.to_json()["score"] == 0


def judgement(
    verdict: Verdict = Verdict.WA, passed: int = 1, weak: bool = False, earned: float | None = 0.3
) -> Judgement:
    cases = tuple(CaseResult(n, Verdict.AC if n < passed else verdict, 0.0, 0.0, 0) for n in range(4))
    return Judgement("p", verdict, cases, passed, 4, weak, "A", "python", "cpython 3", "", 0.0, 0.1, earned)


def test_the_rewards_of_a_judgement() -> None:
    assert rewards.all_or_nothing(judgement()) == 0
    assert rewards.all_or_nothing(judgement(Verdict.AC, 4)) == 1
    assert rewards.share_of_cases(judgement()) == 0.25
    assert rewards.score(judgement()) == 0.3
    assert rewards.score(judgement(earned=None)) == 0.25


@pytest.mark.promise("our-faults")
@pytest.mark.parametrize("reward", [rewards.all_or_nothing, rewards.share_of_cases, rewards.score])
@pytest.mark.parametrize("error", [WorkerDied("x"), CheckerError("x"), InvalidProblem("x"), Cancelled("x")])
def test_our_own_failure_is_masked_and_never_zero(reward: rewards.Reward, error: Any) -> None:
    assert reward(error) is None
    assert rewards.masked_if_weak(reward)(error) is None


def test_a_weak_judgement_can_be_masked() -> None:
    reward = rewards.masked_if_weak(rewards.all_or_nothing)
    assert reward(judgement(Verdict.AC, 4, weak=True)) is None
    assert reward(judgement(Verdict.AC, 4)) == 1
