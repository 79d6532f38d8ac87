"""Points by subtask, shares by test, and rewards: pure functions of an outcome."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from sandbox import Case, CheckerError, InvalidProblem, Judgement, Limits, Problem, Program, Subtask, Verdict
from sandbox.build import Builder
from sandbox.errors import Cancelled, WorkerDied, from_wire, to_wire
from sandbox.jail import Jail
from sandbox.judging import Judge
from sandbox.rewards import outcome as rewards

LIMITS = Limits(cpu_s=2, wall_s=30)
SUBTASKS = (Subtask("small", 30), Subtask("large", 70))
# Echo problems: a case passes when the program echoes its number.
CASES = (
    Case("0", "0"),
    Case("1", "1", "small"),
    Case("2", "2", "small"),
    Case("3", "3", "small"),
    Case("4", "4", "large"),
    Case("5", "5", "large"),
)


@pytest.fixture(scope="module")
def jail() -> Iterator[Jail]:
    with Jail() as jail:
        yield jail


@pytest.fixture
def builder(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    return Builder(tmp_path_factory.mktemp("build"))


def echo_but(*failing: int) -> Program:
    return Program(f"n = int(input()); print(n if n not in {failing} else -1)")


def judged(jail: Jail, builder: Builder, program: Program, *, stop: bool = False, **fields: Any) -> Judgement:
    problem = Problem("p", "stdio", CASES, limits=LIMITS, **{"subtasks": SUBTASKS, **fields})
    return Judge(jail, builder, stop).judge(problem, program)


@pytest.mark.parametrize(
    ("failing", "score"), [((), 1.0), ((0,), 1.0), ((2,), 0.7), ((4,), 0.3), ((5, 1), 0.0), ((1, 2, 3), 0.7)]
)
@pytest.mark.parametrize("stop", [False, True])
def test_a_subtask_earns_its_points_when_all_its_cases_pass(
    jail: Jail, builder: Builder, failing: tuple[int, ...], score: float, stop: bool
) -> None:
    done = judged(jail, builder, echo_but(*failing), stop=stop)
    assert done.score == pytest.approx(score)
    assert (done.verdict is Verdict.AC) is (not failing)


def test_an_early_stop_ends_the_subtask_and_not_the_problem(jail: Jail, builder: Builder) -> None:
    done = judged(jail, builder, echo_but(1), stop=True)
    assert [case.index for case in done.cases] == [0, 1, 4, 5]
    assert (done.passed, done.total) == (3, 6)


def test_without_subtasks_the_score_is_the_share_of_cases(jail: Jail, builder: Builder) -> None:
    cases = tuple(Case(str(n), str(n)) for n in range(4))
    problem = Problem("p", "stdio", cases, limits=LIMITS)
    assert Judge(jail, builder, False).judge(problem, echo_but(1)).score == 0.75
    assert Judge(jail, builder, True).judge(problem, echo_but(1)).score == 0.25


def test_what_does_not_compile_scores_nothing(jail: Jail, builder: Builder) -> None:
    assert judged(jail, builder, Program("1 +")).score == 0


def judgement(
    verdict: Verdict = Verdict.WA, passed: int = 1, weak: bool = False, earned: float | None = 0.3
) -> Judgement:
    return Judgement("p", verdict, (), passed, 4, weak, "A", "python", "cpython 3", "", 0.0, 0.1, earned)


def test_the_rewards_of_a_judgement() -> None:
    assert rewards.all_or_nothing(judgement()) == 0
    assert rewards.all_or_nothing(judgement(Verdict.AC, 4)) == 1
    assert rewards.share_of_cases(judgement()) == 0.25
    assert rewards.score(judgement()) == 0.3
    assert rewards.score(judgement(earned=None)) == 0.25


@pytest.mark.parametrize("reward", [rewards.all_or_nothing, rewards.share_of_cases, rewards.score])
@pytest.mark.parametrize("error", [WorkerDied("x"), CheckerError("x"), InvalidProblem("x"), Cancelled("x")])
def test_our_own_failure_is_masked_and_never_zero(reward: rewards.Reward, error: Any) -> None:
    assert reward(error) is None
    assert rewards.masked_if_weak(reward)(error) is None


def test_a_weak_judgement_can_be_masked() -> None:
    reward = rewards.masked_if_weak(rewards.all_or_nothing)
    assert reward(judgement(Verdict.AC, 4, weak=True)) is None
    assert reward(judgement(Verdict.AC, 4)) == 1


# --- the nouns --------------------------------------------------------------------------------------------------------

CHECKER = Program("import sys; sys.exit(0)")


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"compare": "checker"}, "checker=None"),
        ({"checker": CHECKER}, "nobody would ask it"),
        ({"interactor": CHECKER}, "nobody would ask it"),
        ({"kind": "interactive"}, "interactor=None"),
        ({"kind": "interactive", "interactor": "print()"}, "as a Program"),
        ({"kind": "interactive", "interactor": CHECKER, "compare": "checker", "checker": CHECKER}, "interactive"),
        ({"compare": "checker", "checker": CHECKER, "convention": "icpc"}, "convention='icpc'"),
        ({"cases": (Case("1", "1", "a"),)}, "group='a'"),
        ({"subtasks": (Subtask("a", 1),)}, "no case"),
        ({"cases": (Case("1", "1", "a"),), "subtasks": (Subtask("a", 1), Subtask("a", 2))}, "same name"),
        ({"cases": (Case("1", "1", "a"),), "subtasks": (Subtask("a", -1),)}, "points=-1"),
        ({"cases": (Case("1", "1", "a"),), "subtasks": (Subtask("a", float("nan")),)}, "points=nan"),
        ({"cases": (Case("1", "1", "a"),), "subtasks": (Subtask("a", 0),)}, "nobody can earn"),
        ({"cases": (Case("1", "1", 3),)}, "group=3"),
        ({"compare": "lcb+ignore_case"}, "lcb.ignore_case"),
    ],
)
def test_a_problem_that_nobody_could_decide_is_refused(fields: dict[str, Any], word: str) -> None:
    with pytest.raises(InvalidProblem, match=word):
        Problem(**{"id": "p", "kind": "stdio", "cases": (Case("1", "1"),), **fields})


def test_a_checker_needs_no_expected_output() -> None:
    Problem("p", "stdio", (Case("1"),), compare="checker", checker=CHECKER)
    Problem("p", "interactive", (Case("1"),), interactor=CHECKER)


def test_every_field_of_a_problem_survives_json() -> None:
    talk = Problem("p", "interactive", (Case("1", "2", "a"),), interactor=CHECKER, subtasks=(Subtask("a", 1.5),))
    check = Problem("p", "stdio", CASES[:1], compare="checker", checker=Program("x", "cpp"), convention="kattis")
    for problem in (talk, check):
        assert Problem.from_json(json.loads(json.dumps(problem.to_json()))) == problem


@pytest.mark.parametrize(
    ("data", "word"),
    [
        ({"checker": {"code": "x"}}, "unknown key 'code'"),
        ({"checker": {"language": "cpp"}, "compare": "checker"}, "checker: has neither a source nor files"),
        ({"subtasks": [{"name": "a"}]}, "'points' is missing"),
        ({"subtasks": {"a": 1}}, "list"),
        ({"subtasks": [None]}, "object"),
        ({"interactor": "print()"}, "object"),
    ],
)
def test_a_malformed_part_is_refused_by_name(data: Any, word: str) -> None:
    plain = Problem("p", "stdio", (Case("1", "1"),)).to_json()
    with pytest.raises(InvalidProblem, match=word):
        Problem.from_json({**plain, **data})


def test_a_score_survives_json() -> None:
    for done in (judgement(), judgement(earned=None)):
        data = json.loads(json.dumps(done.to_json()))
        assert data["score"] == done.score
        assert Judgement.from_json(data) == done


def test_a_checkers_fault_keeps_its_type_across_processes() -> None:
    assert type(from_wire(to_wire(CheckerError("x")))) is CheckerError
