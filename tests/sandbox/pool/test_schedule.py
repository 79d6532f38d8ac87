"""What the pool decides without a process: order, expectations, sharing, spreading, counting."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, replace
from typing import Any

import pytest

from sandbox import Case, CaseResult, Judgement, Limits, Problem, Program, Verdict
from sandbox.core.nouns import COMPILE_LIMITS, REFEREE_LIMITS
from sandbox.errors import WorkerDied
from sandbox.judging.interactive import INTERACTOR_END_S
from sandbox.pool.counts import Counts, Histogram
from sandbox.pool.judgement_cache import JudgementCache, repeatable
from sandbox.pool.schedule import OLDEST_EVERY, Backlog, History, longest_s
from sandbox.pool.split import judge_apart, lanes, merge_judgements

LIMITS = Limits(cpu_s=2, wall_s=10)
PROBLEM = Problem("p", "stdio", (Case("", "1"),) * 15, limits=LIMITS)


def ran(index: int = 0, verdict: Verdict = Verdict.AC, cpu_s: float = 0.1, wall_s: float = 0.1) -> CaseResult:
    return CaseResult(index, verdict, cpu_s, wall_s, 1)


def judged(*cases: CaseResult, verdict: Verdict | None = None, toolchain: str = "cpython 3") -> Judgement:
    first = next((case.verdict for case in cases if case.verdict is not Verdict.AC), Verdict.AC)
    passed = sum(case.verdict is Verdict.AC for case in cases)
    return Judgement("p", verdict or first, cases, passed, 15, False, "A", "python", toolchain, "", 0.0, 0.1)


# Order.


@pytest.mark.parametrize(
    ("jobs", "dropped"),
    [
        ([("b", 0, 2.0), ("d", 0, 1.0), ("a", 0, 3.0), ("c", 0, 2.0)], ()),
        ([("c", 2, 1.0), ("-", 2, 9.0), ("b", 1, 1.0), ("a", 1, 5.0), ("d", 3, 99.0)], (1,)),
    ],
)
def test_the_lowest_turn_is_next_then_the_longest_expected_then_the_first(
    jobs: list[tuple[str, int, float]], dropped: tuple[int, ...]
) -> None:
    backlog: Backlog[str] = Backlog()
    for key, (job, turn, expected_s) in enumerate(jobs):
        backlog.put(key, expected_s, job, turn)
    for key in dropped:
        backlog.drop(key)
    assert [backlog.take() for _ in range(4)] == ["a", "b", "c", "d"]
    assert not backlog
    with pytest.raises(IndexError):
        backlog.take()


def test_a_short_job_is_not_overtaken_for_ever() -> None:
    backlog: Backlog[int] = Backlog()
    backlog.put(0, 0.001, 0)
    taken = []
    for key in range(1, 50):
        backlog.put(key, 9.0, key)
        taken.append(backlog.take())
    assert taken.index(0) == OLDEST_EVERY - 1


def test_a_dropped_job_is_not_taken_and_one_put_back_is_taken_once() -> None:
    backlog: Backlog[int] = Backlog()
    for key in range(3):
        backlog.put(key, 1.0, key)
    backlog.drop(1)
    backlog.drop(7)
    assert backlog.take() == 0
    backlog.put(0, 1.0, 0)
    assert len(backlog) == 2
    assert [backlog.take(), backlog.take()] == [0, 2]
    assert not backlog


def test_a_judgement_may_last_as_long_as_all_that_runs_in_it() -> None:
    plain = Problem("p", "stdio", (Case("", "1"),), limits=LIMITS)
    checked = replace(plain, compare="checker", checker=Program("1"), convention="kattis")
    slow = replace(checked, referee_limits=Limits(wall_s=1000))
    assert longest_s(checked) > longest_s(plain) + 2 * REFEREE_LIMITS.wall_limit_s
    assert longest_s(slow) > longest_s(checked) + 2 * (1000 - REFEREE_LIMITS.wall_limit_s)
    assert longest_s(replace(slow, passes=5)) > 4 * longest_s(slow)
    asked = Problem(
        "p", "interactive", (Case(""),), limits=LIMITS, interactor=Program("1"), referee_limits=Limits(wall_s=1)
    )
    assert longest_s(asked) > longest_s(plain) + 2 * INTERACTOR_END_S
    tests = Problem("p", "assert", (Case("assert f() == 1"),) * 100, limits=LIMITS)
    assert longest_s(replace(tests, language="rust")) > 100 * COMPILE_LIMITS.wall_limit_s


# Expectations.


def test_what_is_expected_is_the_mean_so_far_and_before_that_the_limits() -> None:
    history = History()
    assert history.expected_s("k", "python", PROBLEM) == 30.0
    assert history.case_s("k", "python") is None
    history.record("k", "python", judged(ran(0, cpu_s=0.5), ran(1, cpu_s=0.5)))
    history.record("k", "python", judged(ran(0, Verdict.WA, cpu_s=0.5)))
    assert history.expected_s("k", "python", PROBLEM) == pytest.approx(0.75)
    assert history.case_s("k", "python") == pytest.approx(0.5)
    assert history.expected_s("k", "cpp", PROBLEM) == 30.0


def test_jobs_of_one_problem_keep_their_order_while_its_mean_drifts() -> None:
    history, backlog = History(), Backlog[int]()
    for number in range(100):  # each program takes a little longer than those before
        history.record("k", "python", judged(ran(cpu_s=1.0 + number / 1000)))
        backlog.put(number, history.expected_s("k", "python", PROBLEM), number)
    assert [backlog.take() for _ in range(100)] == list(range(100))


def test_the_history_is_bounded_and_forgets_the_one_used_longest_ago() -> None:
    history = History(known_max=2)
    for key in ("a", "b", "a", "c"):
        history.record(key, "python", judged(ran()))
    assert [history.case_s(key, "python") is None for key in "abc"] == [False, True, False]


# Sharing.


@pytest.mark.promise("pool")
@pytest.mark.parametrize(
    ("case", "may_be_shared"),
    [
        (ran(), True),
        (ran(0, Verdict.WA), True),
        (ran(0, Verdict.TLE, cpu_s=2.01, wall_s=3), True),
        (ran(0, Verdict.MLE), True),
        (ran(0, Verdict.TLE, cpu_s=0.2, wall_s=10.1), False),  # the wall backstop
        (ran(0, Verdict.TLE, cpu_s=2.0, wall_s=9.0), False),
        (ran(0, Verdict.MLE, cpu_s=0.2, wall_s=11.0), False),  # starved past its wall limit
    ],
)
def test_what_the_wall_clock_decided_is_not_shared(case: CaseResult, may_be_shared: bool) -> None:
    assert repeatable(judged(ran(), case), LIMITS) is may_be_shared


def shared_by(once: JudgementCache, results: list[Judgement | Exception], askers: int) -> tuple[list[object], int]:
    """Outcomes of so many askers at once, and how often one of them judged."""
    made = []

    async def judge() -> Judgement:
        made.append(1)
        await asyncio.sleep(0)
        result = results[min(len(made), len(results)) - 1]
        if isinstance(result, Exception):
            raise result
        return result

    async def main() -> list[object]:
        return await asyncio.gather(*(once.get("k", LIMITS, judge) for _ in range(askers)), return_exceptions=True)

    return asyncio.run(main()), len(made)


FINE, STARVED, GONE = judged(ran()), judged(ran(0, Verdict.TLE, cpu_s=0.1)), WorkerDied("gone")


@pytest.mark.parametrize(
    ("results", "outcomes", "judgings", "kept"),
    [
        ([FINE], [(FINE, False), (FINE, True), (FINE, True)], 1, [FINE]),
        ([STARVED], [(STARVED, False)] * 3, 3, []),  # it may not be shared
        ([GONE, FINE], [GONE, (FINE, False), (FINE, True)], 2, [FINE]),  # an error is the one's who met it
    ],
)
def test_the_first_asker_judges_the_others_wait_and_what_may_be_shared_is_kept(
    results: list[Judgement | Exception], outcomes: list[object], judgings: int, kept: list[Judgement]
) -> None:
    once = JudgementCache()
    assert shared_by(once, results, 3) == (outcomes, judgings)
    assert [*once.kept.values()] == kept
    if kept:
        assert shared_by(once, [GONE], 1) == ([(FINE, True)], 0)


def test_the_cache_is_bounded_by_number_and_by_size() -> None:
    few, small, done = JudgementCache(kept_max=2), JudgementCache(kept_bytes_max=3000), judged(ran())
    for once in (few, small):
        for key in "abc":
            once._keep(key, done)
        once._keep("d", replace(done, compile_log="x" * 200))
    assert list(few.kept) == ["c", "d"]
    assert list(small.kept) == ["c", "d"]
    assert small.kept_bytes <= 3000


def test_another_toolchain_empties_the_cache() -> None:
    once = JudgementCache()
    once._keep("a", judged(ran()))
    once._keep("b", judged(ran(), toolchain="cpython 4"))
    assert list(once.kept) == ["b"]


# Spreading.


def test_only_slow_cases_are_spread_and_only_over_idle_workers() -> None:
    assert lanes(PROBLEM, 100, case_s=0.1, idle=4) == 4
    assert lanes(PROBLEM, 100, case_s=0.1, idle=40) == 15
    assert lanes(PROBLEM, 100, case_s=0.1, idle=0) == 1
    assert lanes(PROBLEM, 100, case_s=0.005, idle=4) == 1
    assert lanes(replace(PROBLEM, cases=PROBLEM.cases[:1]), 100, case_s=0.1, idle=4) == 1
    assert lanes(PROBLEM, 100, case_s=None, idle=4) == 1
    assert lanes(PROBLEM, 100 << 20, case_s=0.1, idle=4) == 1


def test_cases_that_hang_together_are_not_spread() -> None:
    @dataclass(frozen=True)
    class Tied(Problem):
        partners: tuple[str, ...] = ()

    def width(**options: Any) -> int:
        return lanes(Tied("p", "stdio", PROBLEM.cases, **options), 100, case_s=0.1, idle=4)

    assert [width(), width(compare="exact"), width(partners=("a",))] == [4, 4, 1]


def in_order(verdicts: list[Verdict], stop: bool) -> Judgement:
    parts = []
    for index, verdict in enumerate(verdicts):
        parts.append(judged(ran(index, verdict)))
        if stop and verdict is not Verdict.AC:
            break
    return merge_judgements(parts, len(verdicts))


@pytest.mark.parametrize("seed", range(40))
def test_spread_cases_give_what_one_after_the_other_gives(seed: int) -> None:
    rng = random.Random(seed)
    verdicts = rng.choices([Verdict.AC, Verdict.WA, Verdict.TLE], weights=[8, 1, 1], k=rng.randint(1, 15))
    turns = [rng.randint(0, 9) for _ in verdicts]
    failure = next((index for index, verdict in enumerate(verdicts) if verdict is not Verdict.AC), len(verdicts))
    under_way = set[int]()

    async def ends(stop: bool) -> tuple[Judgement, set[int]]:
        async def ask(index: int) -> Judgement:
            under_way.add(index)
            try:
                for _ in range(turns[index]):
                    await asyncio.sleep(0)
                if stop and index > failure:
                    await asyncio.Event().wait()  # never: the failure before it cancels it
            finally:
                under_way.remove(index)
            return judged(ran(index, verdicts[index]))

        work = judge_apart(ask, len(verdicts), rng.randint(1, 5), stop=stop, first_alone=rng.random() < 0.5)
        return await work, set(under_way)

    for stop in (True, False):
        assert asyncio.run(ends(stop)) == (in_order(verdicts, stop), set())


def test_what_does_not_compile_or_fails_by_our_fault_ends_all_parts() -> None:
    async def ends(outcome: Judgement | Exception) -> tuple[object, list[int]]:
        ended = []

        async def ask(index: int) -> Judgement:
            try:
                if index != 1:
                    await asyncio.Event().wait()
            finally:
                ended.append(index)
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        work = judge_apart(ask, 4, 3, stop=True, first_alone=False)
        (found,) = await asyncio.gather(work, return_exceptions=True)
        return found, sorted(ended)

    unbuilt, gone = judged(verdict=Verdict.CE), WorkerDied("gone")
    assert asyncio.run(ends(unbuilt)) == (replace(unbuilt, total=4), [0, 1, 2])
    assert asyncio.run(ends(gone)) == (gone, [0, 1, 2])


# Counting.


def test_percentiles_are_within_their_error_whatever_the_spread() -> None:
    rng = random.Random(1)
    values = sorted(10 ** rng.uniform(-4, 3) for _ in range(5000))
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    for share in (0.5, 0.95, 0.99):
        exact = values[int(len(values) * share) - 1]
        assert histogram.percentile(share) == pytest.approx(exact, rel=0.03)
    assert Histogram().percentiles().p99_s == 0.0


def test_a_shared_judgement_counts_as_given_but_not_as_run() -> None:
    counts = Counts()
    counts.record(judged(ran()), shared=False)
    counts.record(judged(ran()), shared=True)
    stats = counts.stats()
    assert (stats.done, stats.cache_hits, stats.verdicts) == (2, 1, {"AC": 2})
    assert stats.busy_s == pytest.approx(0.1)
    assert stats.run_time.p50_s == pytest.approx(0.1, rel=0.03)
