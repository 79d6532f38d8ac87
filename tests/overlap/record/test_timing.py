"""Where the time of a step went, against examples worked by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlap.core import Batch
from overlap.pipeline import StepResult
from overlap.record.timing import StepClock, clip, mean, merge_spans, quantile, step_timing, union_s

NOWHERE = (0.0, 0.0)
spans = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)).map(lambda s: (min(s), max(s))), max_size=12)


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


@pytest.mark.parametrize(
    ("generated", "verified", "end", "efficiency", "exposed_s"),
    [
        pytest.param((0, 180), [(180, 320)], 320, 0, 140, id="one after the other"),
        pytest.param((0, 180), [(20, 160)], 180, 1, 0, id="hidden in full"),
        pytest.param((0, 10), [(10, 14)] * 8, 14, 0, 4, id="verifications at once count as wall time"),
        pytest.param((0, 10), [(14, 16)], 16, -2, 6, id="a pause makes it negative"),
    ],
)
def test_overlap_is_what_the_wall_time_shows(generated, verified, end, efficiency, exposed_s):
    timing = step_timing([generated], verified, NOWHERE, NOWHERE, NOWHERE, (0, end))
    assert (timing.overlap_efficiency, timing.exposed_reward_s) == (efficiency, exposed_s)


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
    def result(**spans: tuple[float, float]) -> StepResult:
        return StepResult(Batch(3, 0, ()), None, parity=0.0, **spans)

    clock = StepClock(100.0)
    first = clock.step(result(learn_span=(104, 108), sync_span=(108, 108.5), parity_span=(108.5, 109)))
    second = clock.step(result(learn_span=(112, 116), sync_span=(116, 118), parity_span=(118, 119)))
    assert (first.step_s, second.step_s) == (9, 10)
    assert second.learner_idle_share == pytest.approx(0.6)


def test_quantiles_are_nearest_rank():
    values = [5, 1, 4, 2, 3]
    assert [quantile(values, q) for q in (0, 0.2, 0.5, 0.99, 1)] == [1, 1, 3, 5, 5]
    assert math.isnan(quantile([], 0.5))
    assert math.isnan(mean([]))
