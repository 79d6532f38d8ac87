"""The reasons to drop a group, and the punishment of long responses."""

from __future__ import annotations

from dataclasses import replace

import pytest
from group_of import LIMIT, group_of, scored

from overlap.config.learn import LearnConfig
from overlap.config.load import load_config
from overlap.core import Prompt, Request, Scored
from overlap.core.errors import ConfigError
from overlap.pipeline.advantage import complete, estimate
from overlap.pipeline.assemble import make_group, overlong_punishment


@pytest.mark.parametrize("advantage", ["group", "leave_one_out"])
@pytest.mark.parametrize(
    ("rewards", "reason"),
    [((1.0, 0.0), ""), ((1.0, 1.0), "equal_rewards"), ((0.0, 0.0), "equal_rewards"), ((1.0, None), "too_few_scored")],
)
def test_a_group_that_teaches_nothing_says_why(rewards: tuple, reason: str, advantage: str) -> None:
    assert group_of(*rewards, advantage=advantage).dropped == reason


def test_a_group_of_truncated_samples_is_dropped_where_none_of_them_is_learned_from() -> None:
    assert group_of(1.0, 0.0, finish="length").dropped == "all_truncated"
    assert group_of(1.0, 0.0, finish="length", truncated="zero").dropped == ""
    assert group_of(0.0, 0.0, finish="length", truncated="zero").dropped == "all_truncated"
    bootstrap = {"finish": "length", "advantage": "gae", "truncated": "bootstrap"}
    assert group_of(0.0, **bootstrap).dropped == "all_truncated"  # its only token is the one that is not learned from
    assert group_of((0.0, 2), **bootstrap).dropped == ""


@pytest.mark.parametrize(("lengths", "reason"), [((1, 1, 1), "all_truncated"), ((1, 2), ""), ((2, 1), "")])
def test_an_episode_that_bootstraps_has_a_token_in_the_loss_where_a_branch_has_two(
    lengths: tuple[int, ...], reason: str
) -> None:
    learn = LearnConfig(advantage="gae", truncated="bootstrap")
    first, *others = (scored(Request(0, 0, Prompt("p", (1, 2))), 0.0, "length", n).trajectory for n in lengths)
    sample = Scored(replace(first, forks=tuple(others)), 0.0)
    assert make_group(0, first.request.prompt, [sample], learn, LIMIT).dropped == reason


@pytest.mark.parametrize("advantage", ["global", "gae"])
def test_where_samples_of_a_prompt_are_not_compared_equal_rewards_and_one_sample_teach(advantage: str) -> None:
    assert group_of(1.0, 1.0, advantage=advantage).dropped == ""
    assert group_of(0.0, advantage=advantage).dropped == ""
    assert group_of(1.0, None, 0.0, advantage=advantage).advantages == (1.0, 0.0, 0.0)
    assert group_of(None, None, advantage=advantage).dropped == "too_few_scored"
    assert group_of(0.0, finish="length", advantage=advantage).dropped == "all_truncated"
    assert group_of(0.0, finish="length", advantage=advantage, truncated="zero").dropped == ""


# --- punishments --------------------------------------------------------------------------------------------


def dapo(length: int, most: int, cache: int) -> float:
    """Eq. 13 of DAPO as it stands there, for rewards of -1 and 1."""
    if length <= most - cache:
        return 0.0
    return ((most - cache) - length) / cache if length <= most else -1.0


@pytest.mark.parametrize(("most", "cache"), [(20480, 4096), (100, 100), (7, 1), (16, 5)])
def test_the_punishment_is_half_of_dapos(most: int, cache: int) -> None:
    for length in {0, 1, most - cache - 1, most - cache, most - cache + 1, most - cache // 2, most - 1, most, most + 1}:
        found = overlong_punishment(length, most, cache)
        assert found == pytest.approx(dapo(length, most, cache) / 2, abs=1e-15)


@pytest.mark.promise("advantages")
def test_advantages_are_those_of_dapos_rewards() -> None:
    samples = [(1.0, 50), (1.0, 80), (0.0, 100), (0.0, 10), (1.0, 100), (0.0, 61)]
    theirs = estimate([2 * r - 1 + dapo(n, LIMIT, 40) for r, n in samples], LearnConfig())
    assert group_of(*samples, overlong_tokens=40).advantages == pytest.approx(theirs)


def test_a_long_right_answer_stays_better_than_a_short_wrong_one() -> None:
    group = group_of((1.0, 100), (0.0, 1), (1.0, 1), overlong_tokens=40, normalize_advantages=False)
    assert group.advantages[0] - group.advantages[1] == pytest.approx(0.5)
    assert group.punishments == (-0.5, 0.0, 0.0)
    assert group.rewards == (1.0, 0.0, 1.0)


def test_lengths_alone_make_no_group_worth_learning_from() -> None:
    assert group_of((1.0, 100), (1.0, 1), overlong_tokens=40).dropped == "equal_rewards"
    assert group_of((0.0, 100), (0.0, 9), overlong_tokens=40, finish="length").dropped == "all_truncated"
    assert group_of((1.0, 100), (0.5, 1), overlong_tokens=40).dropped == ""


@pytest.mark.parametrize("advantage", ["global", "gae"])
def test_what_is_made_an_advantage_later_is_the_punished_reward(advantage: str) -> None:
    """By the step, or by the learner's critic."""
    learn = {"advantage": advantage, "truncated": "zero", "overlong_tokens": 40}
    group = group_of((1.0, 100), (1.0, 1), **learn)
    assert (group.advantages, group.dropped) == ((0.5, 1.0), "")
    done = complete((group,), LearnConfig(**learn))[0]  # type: ignore[arg-type]
    assert done.dropped == ("equal_rewards" if advantage == "global" else "")


def test_a_sample_without_a_reward_is_not_punished() -> None:
    group = group_of((None, 100), (1.0, 100), (0.0, 1), overlong_tokens=40, normalize_advantages=False)
    assert group.advantages == pytest.approx((0.0, 0.25, -0.25))


def test_an_interval_as_long_as_a_response_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"learn\.overlong_tokens=256: .*model\.response_tokens=256"):
        load_config(None, ["learn.overlong_tokens=256"])
