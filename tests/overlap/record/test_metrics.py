"""Figures of a step against examples worked by hand, and the lag of the event loop."""

from __future__ import annotations

import asyncio
import math
import re
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from places import ROOT

from overlap.core import Batch, Group, Prompt, Request, Scored, StepReport, Trajectory, Used, VersionSpan
from overlap.pipeline import LoopState, StepResult
from overlap.record import metrics
from overlap.record.episodes import episode_row
from overlap.record.looplag import Lag, LagHistogram, LoopLag
from overlap.record.metrics import StepClock, clip, mean, merge_spans, quantile, slug, step_row, step_timing, union_s
from overlap.record.node_metrics import node_row
from overlap.record.traffic import BusyClock, Traffic
from overlap.verify import ClusterFigures

PROMPT = Prompt("p", (1, 2))
NOWHERE = (0.0, 0.0)

spans = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)).map(lambda s: (min(s), max(s))), max_size=12)


def scored(group: int, sample: int, reward: float | None, **fields: Any) -> Scored:
    """A sample whose generation took [started, ended] and whose verification [verify, verdict]."""
    at = {"started": 0.0, "ended": 1.0, "verify": 1.0, "verdict": 2.0, "tokens": 4, "finish": "stop", "version": 0}
    at |= {"node": "", "run_s": 1.0} | fields
    trajectory = Trajectory(
        request=Request(group, sample, PROMPT),
        token_ids=(7,) * at["tokens"],
        logprobs=(-0.1,) * at["tokens"],
        text="x",
        finish=at["finish"],
        spans=(VersionSpan(at["version"], 0, at["tokens"]),),
        started_s=at["started"],
        finished_s=at["ended"],
    )
    judgement: Any = SimpleNamespace(verdict=at["says"], node=at["node"], run_s=at["run_s"]) if "says" in at else None
    failure = "" if reward is not None else "worker died"
    return Scored(trajectory, reward, judgement, failure, at["ended"], at["verify"], at["verdict"])


def result(*groups: Group, version: int = 0, report: StepReport | None = None, **fields: Any) -> StepResult:
    kept = tuple(g for g in groups if not g.dropped)
    batch = Batch(3, version, kept, tuple(g for g in groups if g.dropped))
    spans = dict.fromkeys(("learn_span", "sync_span", "parity_span"), NOWHERE)
    return StepResult(batch, report, **(spans | {"parity": 0.01} | fields))


def group(number: int, *samples: Scored, dropped: str = "") -> Group:
    return Group(number, PROMPT, samples, (0.0,) * len(samples), dropped)


def test_a_union_counts_time_once():
    assert merge_spans([(4, 6), (0, 2), (1, 3), (6, 7)]) == [(0, 3), (4, 7)]
    assert union_s([(0, 2), (1, 3), (4, 6)]) == 5
    assert union_s([]) == 0
    assert union_s([(5, 1)]) == 0


@given(spans)
def test_a_union_is_what_counting_the_seconds_one_by_one_gives(some):
    seconds = {t for start, end in some for t in range(start, end)}
    assert union_s(some) == len(seconds)


@given(spans)
def test_clipping_keeps_exactly_the_seconds_inside_the_window(some):
    seconds = {t for start, end in some for t in range(start, end) if 10 <= t < 40}
    assert union_s(clip(some, (10, 40))) == len(seconds)


def test_a_step_whose_rewards_are_hidden_but_for_the_tail():
    # requests 0..10 and 2..18; verdicts 10..14 and 18..20: 4 s hidden, 2 s exposed
    # learned 20..26, synced to 27, checked to 30
    timing = step_timing(
        [(0, 10), (2, 18)], [(10, 14), (18, 20)], (20, 26), (26, 27), (27, 30), (0, 30), samples=60, tokens=900
    )  # fmt: skip
    assert timing.step_s == 30
    assert timing.generate_s == 18
    assert timing.reward_s == 6
    assert timing.exposed_reward_s == 2
    assert timing.overlap_efficiency == pytest.approx((18 + 6 - 20) / 6)
    assert timing.generator_idle_share == pytest.approx(12 / 30)
    assert timing.learner_idle_share == pytest.approx(24 / 30)
    assert (timing.learn_s, timing.sync_s, timing.parity_s) == (6, 1, 3)
    assert (timing.samples_per_s, timing.tokens_per_s, timing.decode_tokens_per_s) == (2, 30, 50)


def test_one_after_the_other_overlaps_nothing():
    timing = step_timing([(0, 180)], [(180, 320)], NOWHERE, NOWHERE, NOWHERE, (0, 320))
    assert timing.overlap_efficiency == 0
    assert timing.exposed_reward_s == 140


def test_rewards_that_end_before_the_last_token_are_hidden_in_full():
    timing = step_timing([(0, 180)], [(20, 160)], NOWHERE, NOWHERE, NOWHERE, (0, 180))
    assert timing.overlap_efficiency == 1
    assert timing.exposed_reward_s == 0


def test_verifications_at_once_count_as_wall_time_not_as_a_sum():
    timing = step_timing([(0, 10)], [(10, 14)] * 8, NOWHERE, NOWHERE, NOWHERE, (0, 14))
    assert timing.reward_s == 4
    assert timing.exposed_reward_s == 4


def test_pauses_between_the_last_token_and_the_last_verdict_make_efficiency_negative():
    timing = step_timing([(0, 10)], [(14, 16)], NOWHERE, NOWHERE, NOWHERE, (0, 16))
    assert timing.overlap_efficiency == pytest.approx((10 + 2 - 16) / 2)


def test_a_step_without_samples_has_no_ratios():
    timing = step_timing([], [], NOWHERE, NOWHERE, NOWHERE, (5, 5))
    assert (timing.generate_s, timing.reward_s, timing.exposed_reward_s) == (0, 0, 0)
    assert math.isnan(timing.overlap_efficiency)
    assert math.isnan(timing.generator_idle_share)
    assert math.isnan(timing.decode_tokens_per_s)


def test_an_engine_busy_with_later_batches_is_not_idle():
    own = step_timing([(-9, 0)], [(0, 1)], (0, 8), (8, 10), NOWHERE, (0, 10))
    shared = step_timing([(-9, 0)], [(0, 1)], (0, 8), (8, 10), NOWHERE, (0, 10), engine_spans=[(-9, 0), (0, 7)])
    assert own.generator_idle_share == 1
    assert shared.generator_idle_share == pytest.approx(0.3)
    assert shared.learner_idle_share == pytest.approx(0.2)


def test_steps_follow_each_other_without_gaps():
    clock = StepClock(100.0)
    first = clock.step(result(learn_span=(104, 108), sync_span=(108, 108.5), parity_span=(108.5, 109)))
    second = clock.step(result(learn_span=(112, 116), sync_span=(116, 118), parity_span=(118, 119)))
    assert (first.step_s, second.step_s) == (9, 10)
    assert second.learner_idle_share == pytest.approx(0.6)


def test_the_busy_clock_says_when_anything_was_open_and_cuts_what_still_is():
    clock = BusyClock()
    for at, change in ((1, clock.enter), (2, clock.enter), (3, clock.leave), (5, clock.leave), (7, clock.enter)):
        change(at)
    assert clock.pop_spans(8) == [(1, 5), (7, 8)]
    clock.leave(9)
    assert clock.pop_spans(10) == [(8, 9)]
    assert clock.pop_spans(11) == []


def test_a_row_counts_the_samples_of_dropped_groups_too():
    kept = group(0, scored(0, 0, 1.0, says="AC", tokens=10), scored(0, 1, 0.0, says="WA", tokens=30, finish="length"))
    lost = group(1, scored(1, 0, 0.0, says="TLE"), scored(1, 1, 0.0, says="WA"), dropped="equal rewards")
    ours = group(2, scored(2, 0, None, verdict=0.0, verify=0.0), dropped="too few scored")
    report = StepReport(3, 3, 1.0, {"loss": 0.5, "grad/norm": 2.0})
    made = result(kept, lost, ours, version=2, report=report, learn_span=(2, 5), sync_span=(5, 6), parity_span=(6, 6))
    row = step_row(made, StepClock(0).step(made), lag=Lag(1, 2, 3), extra={"time/save_s": 4.0})
    expected = {
        "step": 3, "version": 3,
        "reward/mean": 0.25, "reward/std": math.sqrt(3) / 4, "reward/solved_share": 0.25, "reward/masked": 1,
        "reward/any_solved_share": 1 / 3,
        "verify/AC": 1, "verify/WA": 2, "verify/TLE": 1, "verify/failed": 1, "verify/run_s_p50": 1.0,
        "rollout/samples": 5, "rollout/tokens": 52, "rollout/length_mean": 10.4, "rollout/length_max": 30,
        "rollout/truncated_share": 0.2, "rollout/groups_kept": 1, "rollout/groups_dropped": 2,
        "rollout/dropped_equal_rewards": 1, "rollout/dropped_too_few_scored": 1,
        "rollout/staleness_mean": 2.0, "rollout/staleness_max": 2, "rollout/parity_gap": 0.01,
        "learn/loss": 0.5, "grad/norm": 2.0, "time/step_s": 6.0, "time/exposed_reward_s": 1.0,
        "time/loop_lag_p99_ms": 2, "time/save_s": 4.0,
    }  # fmt: skip
    assert {name: row[name] for name in expected} == pytest.approx(expected)


def test_punishments_are_told_of_the_scored_samples_beside_rewards_without_them():
    kept = replace(group(0, scored(0, 0, 1.0), scored(0, 1, 0.0), scored(0, 2, None)), punishments=(-0.5, 0.0, -0.5))
    lost = replace(group(1, scored(1, 0, 1.0), dropped="equal_rewards"), punishments=(-0.1,))
    made = result(kept, lost)
    row = step_row(made, StepClock(0).step(made))
    assert row["reward/mean"] == pytest.approx(2 / 3)
    assert (row["reward/overlong_mean"], row["reward/overlong_share"]) == pytest.approx((-0.2, 2 / 3))
    plain = result(group(0, scored(0, 0, 1.0)))
    assert not [name for name in step_row(plain, StepClock(0).step(plain)) if "overlong" in name]


def documented(name: str) -> bool:
    page = (ROOT / "overlap" / "record" / "README.md").read_text()
    lines = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    names = [re.escape(n) for line in lines for n in re.findall(r"`([^`]+)`", line)]
    return any(re.fullmatch(re.sub(r"<\w+>", r"\\w+", n), name) for n in names)


def test_shares_of_the_samples_by_age_have_no_gap_and_make_one():
    ages = (0, 0, 2, 0, 2, 5, 2, 0)
    made = result(group(0, *(scored(0, i, 1.0, version=9 - age) for i, age in enumerate(ages))), version=9)
    row = step_row(made, StepClock(0).step(made))
    shares = {name: value for name, value in row.items() if name.startswith("rollout/staleness_share_")}
    assert shares == {f"rollout/staleness_share_{age}": ages.count(age) / 8 for age in range(6)}
    nothing = result(group(0, scored(0, 0, 0.0), dropped="equal rewards"))
    assert not [n for n in step_row(nothing, StepClock(0).step(nothing)) if "staleness_share" in n]


def test_every_metric_has_its_line_in_the_readme():
    lost = group(1, scored(1, 0, 0.0, says="TLE"), scored(1, 1, 0.0, says="WA"), dropped="equal_rewards")
    learned = dict.fromkeys(trainer_metrics(), 0.5)
    state = LoopState(3, 2, 1, 8, 16, 0.5, 2.5, 9.0)
    kept = replace(group(0, scored(0, 0, 1.0, says="AC")), punishments=(-0.1,))
    away = group(2, scored(2, 0, 1.0, says="AC", node="n1"))
    made = result(kept, lost, away, report=StepReport(1, 1, 1.0, learned), loop=state)
    used = Used(3, 9, 30, 16, 1, 0)
    talk = group(3, scored(3, 0, 1.0))
    talk = replace(talk, samples=tuple(replace(s, trajectory=replace(s.trajectory, used=used)) for s in talk.samples))
    beside = node_row(ClusterFigures(1.0, ())) | episode_row(result(talk), 2)
    assert beside["episode/turns_mean"] == 3
    row = step_row(made, StepClock(0).step(made), lag=Lag(1, 2, 3), extra=beside)
    assert {"verify/back_s_mean", *beside} <= row.keys()
    assert [name for name in row if not documented(name)] == []
    assert not documented("reward/unheard_of")


STATISTICS = ("_MEANS", "_MAXIMA", "_QUANTILES", "TOLD")


def trainer_metrics() -> set[str]:
    """The names that the learner reports, out of its source: importing it would import torch."""
    source = (ROOT / "overlap" / "learner" / "statistics.py").read_text()
    parts = [re.search(rf"^{name} = [({{](.*?)[)}}]$", source, re.DOTALL | re.MULTILINE) for name in STATISTICS]
    told = [name for part in parts if part is not None for name in re.findall(r'"(\w+)"', part[1])]
    assert {"loss", "ratio_max", "ratio_p50", "landing_gap_mean"} <= set(told)
    critic = (ROOT / "overlap" / "learner" / "critic_trainer.py").read_text()
    judged = re.findall(r'"(critic/\w+)":', critic)
    assert {"critic/loss", "critic/explained_variance"} <= set(judged)
    return {*told, *judged, "grad_norm", "lr", "tokens", "forward_backward_s"}


def test_a_metric_is_one_function(monkeypatch):
    monkeypatch.setattr(metrics, "MEASURES", [*metrics.MEASURES])

    @metrics.measure
    def first_step(result: StepResult) -> metrics.Row:
        return {"rollout/first": float(result.batch.step == 1)}

    made = result(group(0, scored(0, 0, 1.0)))
    assert step_row(made, StepClock(0).step(made))["rollout/first"] in (0.0, 1.0)


def test_a_step_that_taught_nothing_keeps_the_version_and_still_has_a_row():
    made = result(group(0, scored(0, 0, 0.0), dropped="equal rewards"), version=4, parity_span=(3, 3))
    row = step_row(made, StepClock(0).step(made))
    assert (row["version"], row["reward/mean"], row["rollout/groups_kept"]) == (4, 0.0, 0)
    assert math.isnan(row["rollout/parity_gap"])


def test_a_verification_that_failed_before_it_began_takes_no_time():
    lost = scored(0, 1, None, started=10.0, ended=14.0, verify=0.0, verdict=90.0)
    made = result(group(0, scored(0, 0, 1.0, started=10.0, ended=14.0, verify=14.0, verdict=15.0), lost))
    row = step_row(made, StepClock(10).step(made))
    assert (row["time/reward_s"], row["time/exposed_reward_s"], row["verify/run_s_max"]) == (1, 1, 1)


def test_the_way_back_from_a_node_is_no_part_of_what_a_judgement_took():
    away = scored(0, 0, 1.0, says="AC", node="n1", run_s=3.0, verify=10.0, verdict=15.0)
    here = scored(0, 1, 1.0, says="AC", run_s=3.0, verify=10.0, verdict=15.0)
    made = result(group(0, away, here))
    row = step_row(made, StepClock(0).step(made))
    assert (row["verify/run_s_p50"], row["verify/run_s_max"], row["verify/back_s_mean"]) == (3.0, 5.0, 2.0)
    assert row["time/reward_s"] == 5.0  # nobody has a verdict before it is back


def test_how_full_the_loop_is_and_who_waited_is_in_the_row():
    made = result(loop=LoopState(3, 2, 1, 8, 16, 0.5, 2.5, 9.0))
    row = step_row(made, StepClock(0).step(made))
    assert (row["loop/generating"], row["loop/leases_allowed"], row["loop/learner_waited_s"]) == (3, 16, 2.5)


def test_quantiles_are_nearest_rank():
    values = [5, 1, 4, 2, 3]
    assert [quantile(values, q) for q in (0, 0.2, 0.5, 0.99, 1)] == [1, 1, 3, 5, 5]
    assert math.isnan(quantile([], 0.5))
    assert math.isnan(mean([]))


def test_reasons_become_names():
    assert slug("All rewards equal (0.0)") == "all_rewards_equal_0_0"
    assert slug("!") == "other"


@pytest.mark.parametrize("lag_ms", [0.0, 0.02, 1.0, 17.3, 49.9, 8000.0])
def test_the_histogram_is_right_within_five_percent(lag_ms):
    histogram = LagHistogram()
    for _ in range(100):
        histogram.add(lag_ms)
    lag = histogram.lag()
    assert lag.max_ms == lag_ms
    assert lag.p50_ms == pytest.approx(lag_ms, rel=0.05)
    assert lag.p99_ms == pytest.approx(lag_ms, rel=0.05)


def test_a_lag_beyond_the_last_bucket_is_reported_as_it_was():
    histogram = LagHistogram()
    histogram.add(1e9)
    assert histogram.lag().max_ms == 1e9


def test_quantiles_of_lags_lie_where_the_lags_lie():
    histogram = LagHistogram()
    for k in range(1, 1001):
        histogram.add(k / 10)
    assert histogram.lag().p50_ms == pytest.approx(50, rel=0.06)
    assert histogram.lag().p99_ms == pytest.approx(99, rel=0.06)


def test_one_long_block_weighs_as_much_as_the_time_that_it_took():
    lag = LoopLag(interval_s=0.01)
    for _ in range(100):
        lag.observe(0.0)
    lag.observe(1.0)  # one second in two: half of all instants were blocked
    assert lag.run().max_ms == pytest.approx(1000)
    assert lag.run().p99_ms > 900


def test_the_lag_of_a_step_begins_anew_and_that_of_the_run_does_not():
    lag = LoopLag()
    lag.observe(0.05)
    assert lag.pop_step().max_ms == pytest.approx(50)
    assert lag.pop_step().max_ms == 0
    assert lag.run().max_ms == pytest.approx(50)


class _Noticing(LoopLag):
    """Sets an event when the first lag has been entered."""

    def __init__(self) -> None:
        super().__init__(interval_s=0.001)
        self.noticed = asyncio.Event()

    def observe(self, late_s: float) -> None:
        super().observe(late_s)
        self.noticed.set()


async def _block_the_loop() -> LoopLag:
    async with _Noticing() as lag:
        await asyncio.sleep(0)  # the watcher goes to sleep
        end = time.monotonic() + 0.05
        while time.monotonic() < end:
            pass
        await lag.noticed.wait()
    assert [t for t in asyncio.all_tasks() if t.get_name() == "loop-lag"] == []
    return lag


def test_a_blocked_loop_is_seen_and_the_watcher_ends():
    lag = asyncio.run(asyncio.wait_for(_block_the_loop(), 20))
    assert lag.run().max_ms >= 30


class _Inner:
    def __init__(self) -> None:
        self.gate = asyncio.Event()

    async def generate(self, request: Request) -> Trajectory:
        await self.gate.wait()
        return scored(request.group, request.sample, 1.0).trajectory

    async def score(self, trajectory: Trajectory) -> Scored:
        raise RuntimeError("verifier failed")

    def pids(self) -> tuple[int, ...]:
        return (1, 2)


async def _watched() -> None:
    inner: Any = _Inner()
    seen: list[str] = []
    traffic = Traffic(lambda t: seen.append(str(t)))
    generator: Any = traffic.generator(inner)
    tasks = [asyncio.create_task(generator.generate(Request(0, k, PROMPT))) for k in range(2)]
    await asyncio.sleep(0)
    assert (traffic.generating, generator.pids()) == (2, (1, 2))
    inner.gate.set()
    trajectories = await asyncio.gather(*tasks)
    assert (traffic.generating, traffic.generated, traffic.tokens) == (0, 2, 8)
    assert len(traffic.pop_engine_spans()) == 1
    with pytest.raises(RuntimeError, match="verifier failed"):
        await traffic.verifier(inner).score(trajectories[0])
    assert (traffic.verifying, traffic.verified) == (0, 0)
    assert seen == ["1 generating, 0 verifying", "0 generating, 0 verifying"]


def test_counted_doors_count_what_passes_and_let_everything_else_through():
    asyncio.run(asyncio.wait_for(_watched(), 20))
