"""From trajectories to rewards: whose fault is it, and what becomes of the sample."""

from __future__ import annotations

import asyncio
import math
from fractions import Fraction
from typing import Any

import pytest
from verifying import Judged, StandIn, config, gone, hanging, judgement, opened, says, score, trajectory

from overlap.core import Prompt
from overlap.core.errors import ConfigError, DataError, VerifierError
from overlap.task import Task
from overlap.verify.verifier import SandboxVerifier
from sandbox.core.nouns import Case, Judgement, Program, Verdict
from sandbox.core.problem import Problem
from sandbox.errors import (
    CheckerError,
    InvalidProblem,
    IsolationUnavailable,
    PoolClosed,
    SandboxError,
    ToolchainMissing,
    WorkerDied,
)

# What programs did.


def test_a_verdict_becomes_the_reward_of_prefill_and_text() -> None:
    seen: list[str] = []

    async def answer(program: Program) -> Judgement:
        seen.append(program.source)
        return judgement(Verdict.AC if "3" in program.source else Verdict.WA)

    good, bad = score(Judged(), trajectory("(3)", prefill="print"), trajectory("(4)"), answer=answer)
    assert seen == ["print(3)", "(4)"]
    assert (good.reward, bad.reward, good.failure, bad.failure) == (1.0, 0.0, "", "")
    assert good.judgement == judgement()


def test_equal_programs_of_samples_are_known_as_equal_also_those_that_could_not_be_judged() -> None:
    answers = "(3)", "(3)", "(4)"
    judged = [s.program_sha256 for s in score(Judged(), *map(trajectory, answers), answer=says(Verdict.AC))]
    assert judged[0] == judged[1] != judged[2]
    assert all(len(digest) == 16 for digest in judged)
    (failed,) = score(Judged(), trajectory("(3)"), answer=says(WorkerDied("gone")))
    assert (failed.reward, failed.program_sha256) == (None, judged[0])
    (aborted,) = score(Judged(), trajectory("(3)", finish="abort"), answer=says(Verdict.AC))
    assert aborted.program_sha256 == ""


def test_an_aborted_response_is_not_judged() -> None:
    (scored,) = score(Judged(), trajectory("x", finish="abort"), answer=says(SandboxError("not to be asked")))
    assert (scored.reward, scored.failure, scored.judgement) == (None, "aborted", None)


def test_a_task_can_mask_a_sample() -> None:
    (scored,) = score(Odd(None), trajectory("x"), answer=says(Verdict.AC))
    assert (scored.reward, scored.failure) == (None, "masked by the task")


# What we did.


@pytest.mark.promise("our-faults")
@pytest.mark.parametrize(("then", "reward", "why"), [([Verdict.AC], 1.0, ""), ([], None, "WorkerDied: gone")])
def test_our_failure_is_tried_again_once_and_then_masks_the_sample(then: list, reward: float | None, why: str) -> None:
    (scored,) = score(Judged(), trajectory("x"), answer=says(WorkerDied("gone"), *then))
    assert (scored.reward, scored.failure) == (reward, why)


@pytest.mark.promise("our-faults")
async def test_too_many_failures_stop_the_run_and_name_the_most_frequent_cause() -> None:
    outcomes = [Verdict.AC] * 19 + [WorkerDied("a")] * 2 + [WorkerDied("b")] * 4
    async with opened(Judged(), says(*outcomes)) as verifier:
        assert [(await verifier.score(trajectory("x"))).reward for _ in range(20)] == [1.0] * 19 + [None] * 1
        with pytest.raises(
            VerifierError, match=r"2 of the last 21 .*, and 5% may; most frequent, 1 times: WorkerDied: a"
        ):
            await verifier.score(trajectory("x"))


class Stillborn(StandIn):
    async def __aenter__(self) -> StandIn:
        await super().__aenter__()
        raise WorkerDied("stillborn")


@pytest.mark.parametrize("first", [StandIn(says(PoolClosed("closed"))), Stillborn(says(Verdict.AC))])
async def test_a_pool_that_closed_itself_or_did_not_open_is_replaced(first: StandIn) -> None:
    pools = [first, StandIn(says(Verdict.AC))]
    rest = iter(pools)
    verifier = SandboxVerifier(config(), Judged(), pool=lambda: next(rest), judge_once=False)
    scored = await asyncio.gather(*(verifier.score(trajectory("x", sample)) for sample in range(8)))
    assert [s.reward for s in scored] == [1.0] * 8
    await verifier.close()
    assert [(pool.opened, pool.closed) for pool in pools] == [(1, 0), (1, 1)]


@pytest.mark.promise("stage-faults")
async def test_cancelling_a_sample_cancels_its_job_and_leaves_the_others() -> None:
    reached, go = asyncio.Event(), asyncio.Event()

    async def answer(program: Program) -> Judgement:
        reached.set()
        await go.wait()
        return judgement()

    pool = StandIn(answer)
    verifier = SandboxVerifier(config(), Judged(), pool=lambda: pool, judge_once=False)
    first, second = (asyncio.create_task(verifier.score(trajectory("x", k))) for k in range(2))
    await reached.wait()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    go.set()
    assert (await second).reward == 1.0
    assert pool.cancelled == 1
    await verifier.close()


# What the user's code and data did.


def test_a_problem_that_cannot_be_judged_stops_the_run_and_is_named() -> None:
    class Untested(Judged):
        def program(self, prompt: Prompt, answer: str) -> tuple[Problem, Program]:
            return Problem("no-tests", "stdio", ()), Program(answer)

    with pytest.raises(DataError, match=r"problem='sum'.*no-tests.*at least one case"):
        score(Untested(), trajectory("x"), answer=says(Verdict.AC))
    with pytest.raises(DataError, match=r"problem='add'.*too deep"):
        score(Judged(), trajectory("x"), answer=says(InvalidProblem("too deep")))


@pytest.mark.parametrize("method", ["program", "reward"])
def test_an_error_in_the_users_code_names_method_sample_and_place(method: str) -> None:
    def broken(self: Task, *args: object) -> None:
        raise KeyError("no such key")

    task = type("Broken", (Judged,), {method: broken})()
    expected = rf"Broken\.{method} raised KeyError: 'no such key' \(.*test_verifier\.py:\d+\).*sample g0s3.*'sum'"
    with pytest.raises(VerifierError, match=expected) as caught:
        score(task, trajectory("x", 3), answer=says(Verdict.AC))
    assert isinstance(caught.value.__cause__, KeyError)


class Odd(Judged):
    def __init__(self, value: Any) -> None:
        self.value = value

    def reward(self, prompt: Prompt, answer: str, judgement: Judgement | None) -> Any:
        return self.value


REWARDS = [
    (math.nan, "nan;"),
    (-math.inf, "-inf;"),
    (Fraction(10**400), "10000"),
    (-1e300, "-1e.300; return a finite number, of at most 1e.24,"),
    ("1", "'1' of type str;"),
    ([1.0], ".1.0. of type list;"),
]


@pytest.mark.promise("rewards-in")
@pytest.mark.parametrize(("value", "says_"), REWARDS)
def test_a_reward_that_is_no_finite_number_is_the_users_error(value: object, says_: str) -> None:
    with pytest.raises(VerifierError, match=rf"Odd\.reward returned {says_}"):
        score(Odd(value), trajectory("x"), answer=says(Verdict.AC))


def test_a_missing_toolchain_stops_the_run() -> None:
    with pytest.raises(VerifierError, match="programs in python cannot be judged: no python"):
        score(Judged(), trajectory("x"), answer=says(ToolchainMissing("no python")))


# Start and close.


class Numeric(Judged):
    packages = ("no_such_package",)


class Probed(StandIn):
    """Judges the probe as it judges all other programs."""

    async def judge(self, problem: Problem, program: Program, *, turn: int = 0) -> Judgement:
        return await self.answer(program)


@pytest.mark.promise("tiers")
@pytest.mark.parametrize(
    ("task", "outcome", "error", "said"),
    [
        (Judged(), IsolationUnavailable("tier A needs it"), ConfigError, "verify.isolation='A': tier A needs it"),
        (Judged(), Verdict.RE, VerifierError, "the sandbox does not work: a correct program was judged RE"),
        (Judged(), WorkerDied("gone"), VerifierError, "the sandbox does not work: WorkerDied: gone"),
        (Numeric(), None, ConfigError, "task.packages=.*no_such_package.*install it there"),
    ],
)
async def test_a_sandbox_that_does_not_work_as_asked_is_refused_at_the_start(
    task: Task, outcome: Any, error: type[Exception], said: str
) -> None:
    pool = (lambda: Probed(says(outcome))) if outcome else None
    verifier = SandboxVerifier(config(isolation="A"), task, pool=pool)
    with pytest.raises(error, match=said):
        await verifier.start()
    await verifier.close()


async def test_a_verifier_is_closed_twice_or_before_its_start_and_then_refuses_work() -> None:
    verifier = SandboxVerifier(config(), Judged(), pool=lambda: StandIn(says(Verdict.AC)))
    await asyncio.gather(verifier.close(), verifier.close())
    await verifier.close()
    with pytest.raises(VerifierError, match="after the verifier was closed"):
        await verifier.score(trajectory("x"))
    assert verifier.pids() == ()


async def test_a_pool_that_does_not_close_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overlap.verify.verifier.CLOSE_S", 0.05)
    stuck = hanging()

    class Stuck(StandIn):
        async def __aexit__(self, *exc_info: object) -> None:
            await asyncio.Event().wait()

    pool = Stuck(says(Verdict.AC))
    pool.children = (stuck.pid,)
    verifier = SandboxVerifier(config(), Judged(), pool=lambda: pool, judge_once=False)
    await verifier.start()
    assert verifier.pids() == (stuck.pid,)
    await verifier.close()
    assert gone(stuck.pid)
    stuck.wait()


# A problem whose checker fails.


class Checked(Judged):
    """Answers "BROKEN" are to the problem "broken", all others to "sum"."""

    def program(self, prompt: Prompt, answer: str) -> tuple[Problem, Program]:
        return Problem("broken" if "BROKEN" in answer else "sum", "stdio", (Case("1", "1"),)), Program(answer)


async def test_a_problem_whose_checker_fails_is_named_once_and_asked_no_more() -> None:
    asked: list[str] = []
    told: list[str] = []

    async def answer(program: Program) -> Judgement:
        asked.append(program.source)
        if "BROKEN" in program.source:
            raise CheckerError("the checker ended by signal 11\n\x1b[31m")
        return judgement()

    pool = StandIn(answer)
    verifier = SandboxVerifier(config(), Checked(), pool=lambda: pool, judge_once=False, notify=told.append)
    for number in range(40):  # half of them, and yet no failure of ours
        scored = await verifier.score(trajectory(f"BROKEN {number}"))
        assert scored.reward is None
        assert "the checker ended by signal 11" in scored.failure
        assert (await verifier.score(trajectory(f"fine {number}"))).reward == 1.0
    await verifier.close()
    assert [source for source in asked if "BROKEN" in source] == ["BROKEN 0"]
    assert len(told) == 1
    assert "problem 'broken' is set aside" in told[0]
    assert "signal 11" in told[0]
    assert told[0].isprintable()


async def test_samples_in_hand_of_such_a_problem_count_as_one_failure() -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def answer(program: Program) -> Judgement:
        if "BROKEN" not in program.source:
            return judgement()
        begun.set()
        await go.wait()
        raise CheckerError("broken")

    async with opened(Checked(), answer) as verifier:
        for _ in range(19):
            await verifier.score(trajectory("fine"))
        group = [asyncio.create_task(verifier.score(trajectory("BROKEN", k))) for k in range(8)]
        await begun.wait()
        go.set()
        assert [scored.reward for scored in await asyncio.gather(*group)] == [None] * 8
