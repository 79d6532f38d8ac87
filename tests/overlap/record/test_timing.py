"""Where the time of a step went, against examples worked by hand."""

from __future__ import annotations

import pytest
from finished_steps import group, result, scored
from hypothesis import given
from hypothesis import strategies as st

from overlap.record.timing import TIMINGS, clip, merge_spans, step_times, union_s

Span = tuple[float, float]
spans = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)).map(lambda s: (min(s), max(s))), max_size=12)


def times_of(
    generated: list[Span], verified: list[Span], step: Span, *, engine: list[Span] | None = None, **more: Span
):
    pairs = [(*span, *judged) for span, judged in zip(generated, verified, strict=True)]
    times = [dict(zip(("started", "ended", "verify", "verdict"), pair, strict=True)) for pair in pairs]
    made = group(0, *(scored(0, k, tokens=450, **at) for k, at in enumerate(times)))
    found = step_times(result(made, **more), step, generated if engine is None else engine)
    assert tuple(found) == TIMINGS
    return found


@given(spans)
def test_a_union_counts_time_once_as_counting_the_seconds_one_by_one_does(some):
    seconds = {t for start, end in some for t in range(start, end)}
    assert union_s([*some, (5, 1)]) == len(seconds)
    assert union_s(clip(some, (10, 40))) == len([t for t in seconds if 10 <= t < 40])
    assert merge_spans([(4, 6), (0, 2), (1, 3), (6, 7)]) == [(0, 3), (4, 7)]


@pytest.mark.promise("figures")
def test_a_step_whose_rewards_are_hidden_but_for_the_tail():
    # requests 0..10 and 2..18; verdicts 10..14 and 18..20: 4 s hidden, 2 s exposed
    # learned 20..26, synced to 27, checked to 30
    after = {"learn_span": (20, 26), "sync_span": (26, 27), "parity_span": (27, 30)}
    assert times_of([(0, 10), (2, 18)], [(10, 14), (18, 20)], (0, 30), **after) == {
        "step_s": 30,
        "generate_s": 18,
        "reward_s": 6,
        "exposed_reward_s": 2,
        "overlap_efficiency": pytest.approx((18 + 6 - 20) / 6),
        "generator_idle_share": pytest.approx(12 / 30),
        "learner_idle_share": pytest.approx(24 / 30),
        "learn_s": 6,
        "sync_s": 1,
        "parity_s": 3,
        "samples_per_s": pytest.approx(2 / 30),
        "tokens_per_s": 30,
        "decode_tokens_per_s": 50,
    }


@pytest.mark.promise("figures")
@pytest.mark.parametrize(
    ("generated", "verified", "end", "efficiency", "exposed_s"),
    [
        pytest.param((0, 180), [(180, 320)], 320, 0, 140, id="one after the other"),
        pytest.param((0, 180), [(20, 160)], 180, 1, 0, id="hidden in full"),
        pytest.param((0, 10), [(10, 14)] * 8, 14, 0, 4, id="verifications at once count as wall time"),
        pytest.param((0, 10), [(14, 16)], 16, 0, 6, id="a pause between them"),
    ],
)
def test_overlap_is_what_the_wall_time_shows(generated, verified, end, efficiency, exposed_s):
    found = times_of([generated] * len(verified), verified, (0, end))
    assert (found["overlap_efficiency"], found["exposed_reward_s"]) == (efficiency, exposed_s)


def test_an_engine_busy_with_later_batches_is_not_idle():
    step = {"step": (0, 10), "learn_span": (0, 8), "sync_span": (8, 10)}
    assert times_of([(-9, 0)], [(0, 1)], **step)["generator_idle_share"] == 1
    shared = times_of([(-9, 0)], [(0, 1)], engine=[(-9, 0), (0, 7)], **step)
    assert (shared["generator_idle_share"], shared["learner_idle_share"]) == pytest.approx((0.3, 0.2))
