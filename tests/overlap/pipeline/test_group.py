"""Advantages and the reasons to drop a group."""

from __future__ import annotations

import statistics
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlap.config import LearnConfig
from overlap.core import Group, Prompt, Request, Scored, Trajectory, VersionSpan
from overlap.pipeline.advantage import advantages, complete, leave_one_out
from overlap.pipeline.group import make_group

PROMPT = Prompt("p", (1, 2))


def scored(sample: int, reward: float | None, finish: str = "stop") -> Scored:
    at = time.monotonic()
    span = (VersionSpan(0, 0, 1),)
    trajectory = Trajectory(Request(0, sample, PROMPT), (5,), (-0.5,), "x", finish, span, at, at)  # type: ignore[arg-type]
    return Scored(trajectory, reward)


def group_of(*rewards: float | None, finish: str = "stop", **learn: str):
    samples = [scored(k, r, finish) for k, r in enumerate(rewards)]
    return make_group(0, PROMPT, samples[::-1], LearnConfig(**learn))  # type: ignore[arg-type]


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=16).filter(lambda r: statistics.stdev(r) > 1e-3))
def test_advantages_equal_the_textbook_formula(rewards: list[float]) -> None:
    mean, std = statistics.fmean(rewards), statistics.stdev(rewards)
    assert advantages(rewards, normalize_std=True) == pytest.approx([(r - mean) / std for r in rewards], abs=1e-6)
    assert advantages(rewards, normalize_std=False) == pytest.approx([r - mean for r in rewards], abs=1e-9)


def test_a_binary_group_by_hand() -> None:
    assert advantages([1, 0, 0, 0], normalize_std=True) == pytest.approx((1.5, -0.5, -0.5, -0.5))
    assert advantages([1, 0, 0, 0], normalize_std=False) == pytest.approx((0.75, -0.25, -0.25, -0.25))


def test_the_deviation_is_the_one_that_verl_and_trl_divide_by() -> None:
    torch = pytest.importorskip("torch")
    rewards = [1.0, 0.0, 0.0, 1.0, 0.0, 0.25, 0.0, 0.0]
    t = torch.tensor(rewards, dtype=torch.float64)
    assert advantages(rewards, normalize_std=True) == pytest.approx(((t - t.mean()) / t.std()).tolist())


def test_unscored_samples_count_nowhere() -> None:
    assert advantages([1, None, 0], normalize_std=False) == (0.5, 0.0, -0.5)
    assert advantages([1, None, 0], normalize_std=True) == pytest.approx((0.5**0.5, 0.0, -(0.5**0.5)))


def test_samples_are_put_in_order() -> None:
    assert [s.id for s in group_of(1.0, 0.0, 1.0).samples] == ["g0s0", "g0s1", "g0s2"]


@pytest.mark.parametrize(
    ("rewards", "reason"),
    [((1.0, 0.0), ""), ((1.0, 1.0), "equal_rewards"), ((0.0, 0.0), "equal_rewards"), ((1.0, None), "too_few_scored")],
)
def test_a_group_that_teaches_nothing_says_why(rewards: tuple, reason: str) -> None:
    assert group_of(*rewards).dropped == reason


def test_a_group_of_truncated_samples_is_dropped_only_when_they_are_masked() -> None:
    assert group_of(1.0, 0.0, finish="length").dropped == "all_truncated"
    assert group_of(1.0, 0.0, finish="length", truncated="zero").dropped == ""


@pytest.mark.parametrize("truncated", ["mask", "zero"])
def test_a_group_whose_samples_were_all_cut_off_is_told_as_that(truncated: str) -> None:
    assert group_of(0.0, 0.0, finish="length", truncated=truncated).dropped == "all_truncated"


def test_one_left_out_is_held_against_the_others() -> None:
    assert leave_one_out([1, 0, 0, 0]) == pytest.approx((1, -1 / 3, -1 / 3, -1 / 3))
    assert leave_one_out([1, None, 0.5, 0]) == pytest.approx((0.75, 0, 0, -0.75))
    assert leave_one_out([1, None]) == leave_one_out([1, 1]) == (0.0, 0.0)


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=16))
def test_leave_one_out_is_the_mean_of_the_others_in_exact_numbers(rewards: list[float]) -> None:
    from fractions import Fraction

    exact = [Fraction(r) for r in rewards]
    expected = [float(r - (sum(exact) - r) / (len(exact) - 1)) for r in exact]
    assert leave_one_out(rewards) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("advantage", ["global", "gae"])
def test_where_samples_of_a_prompt_are_not_compared_equal_rewards_and_one_sample_teach(advantage: str) -> None:
    assert group_of(1.0, 1.0, advantage=advantage).dropped == ""
    assert group_of(0.0, advantage=advantage).dropped == ""
    assert group_of(1.0, None, 0.0, advantage=advantage).advantages == (1.0, 0.0, 0.0)
    assert group_of(None, None, advantage=advantage).dropped == "too_few_scored"
    assert group_of(0.0, finish="length", advantage=advantage).dropped == "all_truncated"
    assert group_of(0.0, finish="length", advantage=advantage, truncated="zero").dropped == ""


def test_leave_one_out_drops_what_grpo_drops() -> None:
    assert group_of(1.0, 1.0, advantage="leave_one_out").dropped == "equal_rewards"
    assert group_of(1.0, None, advantage="leave_one_out").dropped == "too_few_scored"


def test_a_cut_off_sample_of_one_token_has_none_left_to_learn_from() -> None:
    one = group_of(0.0, finish="length", advantage="gae", truncated="bootstrap")
    assert one.dropped == "all_truncated"
    two = scored(0, 0.0, "length")
    object.__setattr__(two.trajectory, "token_ids", (5, 6))
    learn = LearnConfig(advantage="gae", truncated="bootstrap")
    assert make_group(0, PROMPT, [two], learn).dropped == ""


def test_global_advantages_are_those_of_the_whole_step() -> None:
    learn = LearnConfig(advantage="global")
    groups = (group_of(1.0, 1.0, advantage="global"), group_of(0.0, None, 0.5, advantage="global"))
    step = complete(groups, learn)
    mean, std = statistics.fmean([1, 1, 0, 0.5]), statistics.stdev([1, 1, 0, 0.5])
    assert step[0].advantages == pytest.approx([(1 - mean) / std] * 2)
    assert step[1].advantages == pytest.approx([-mean / std, 0.0, (0.5 - mean) / std])
    assert [g.dropped for g in step] == ["", ""]


def test_a_step_of_equal_rewards_teaches_nothing_globally() -> None:
    groups = (group_of(1.0, 1.0, advantage="global"), group_of(None, None, advantage="global"))
    step = complete(groups, LearnConfig(advantage="global"))
    assert [g.dropped for g in step] == ["equal_rewards", "too_few_scored"]
    assert not any(a for g in step for a in g.advantages)


@pytest.mark.parametrize("advantage", ["group", "leave_one_out", "gae"])
def test_other_advantages_are_known_before_the_step_is_complete(advantage: str) -> None:
    groups: tuple[Group, ...] = (group_of(1.0, 0.0, advantage=advantage),)
    assert complete(groups, LearnConfig(advantage=advantage)) is groups  # type: ignore[arg-type]
