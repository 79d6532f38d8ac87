"""Advantages against their formulas, and functions of the user's in their place."""

from __future__ import annotations

import re
import statistics
from fractions import Fraction
from pathlib import Path
from typing import Literal, get_args, get_origin, get_type_hints

import pytest
from group_of import group_of
from hypothesis import given
from hypothesis import strategies as st
from places import ROOT

from overlap.config.learn import LearnConfig
from overlap.core.errors import ConfigError
from overlap.pipeline.advantage import ESTIMATORS, complete, estimate, estimator

GRPO, DR_GRPO = LearnConfig(), LearnConfig(normalize_advantages=False)
RLOO = LearnConfig(advantage="leave_one_out")


@pytest.mark.promise("advantages")
@given(st.lists(st.floats(-100, 100), min_size=2, max_size=16).filter(lambda r: statistics.stdev(r) > 1e-3))
def test_advantages_equal_the_textbook_formula(rewards: list[float]) -> None:
    mean, std = statistics.fmean(rewards), statistics.stdev(rewards)
    assert estimate(rewards, GRPO) == pytest.approx([(r - mean) / std for r in rewards], abs=1e-6)
    assert estimate(rewards, DR_GRPO) == pytest.approx([r - mean for r in rewards], abs=1e-9)


@pytest.mark.promise("advantages")
def test_the_deviation_is_the_one_that_verl_and_trl_divide_by() -> None:
    torch = pytest.importorskip("torch")
    rewards = [1.0, 0.0, 0.0, 1.0, 0.0, 0.25, 0.0, 0.0]
    t = torch.tensor(rewards, dtype=torch.float64)
    assert estimate(rewards, GRPO) == pytest.approx(((t - t.mean()) / t.std()).tolist())


@pytest.mark.parametrize(
    ("learn", "rewards", "expected"),
    [
        (GRPO, [1, 0, 0, 0], [1.5, -0.5, -0.5, -0.5]),
        (GRPO, [1, None, 0], [0.5**0.5, 0, -(0.5**0.5)]),
        (DR_GRPO, [1, 0, 0, 0], [0.75, -0.25, -0.25, -0.25]),
        (DR_GRPO, [1, None, 0], [0.5, 0, -0.5]),
        (RLOO, [1, 0, 0, 0], [1, -1 / 3, -1 / 3, -1 / 3]),
        (RLOO, [1, None, 0.5, 0], [0.75, 0, 0, -0.75]),
        (RLOO, [1, None], [0, 0]),
        (RLOO, [1, 1], [0, 0]),
    ],
)
def test_small_groups_by_hand_where_samples_without_a_reward_count_nowhere(
    learn: LearnConfig, rewards: list[float | None], expected: list[float]
) -> None:
    assert estimate(rewards, learn) == pytest.approx(expected)


@pytest.mark.promise("advantages")
@given(st.lists(st.floats(-100, 100), min_size=2, max_size=16))
def test_leave_one_out_is_the_mean_of_the_others_in_exact_numbers(rewards: list[float]) -> None:
    exact = [Fraction(r) for r in rewards]
    expected = [float(r - (sum(exact) - r) / (len(exact) - 1)) for r in exact]
    assert estimate(rewards, RLOO) == pytest.approx(expected, abs=1e-9)


@pytest.mark.promise("advantages")
def test_global_advantages_are_those_of_the_whole_step() -> None:
    learn = LearnConfig(advantage="global")
    groups = (group_of(1.0, 1.0, advantage="global"), group_of(0.0, None, 0.5, advantage="global"))
    step = complete(groups, learn)
    mean, std = statistics.fmean([1, 1, 0, 0.5]), statistics.stdev([1, 1, 0, 0.5])
    assert step[0].advantages == pytest.approx([(1 - mean) / std] * 2)
    assert step[1].advantages == pytest.approx([-mean / std, 0.0, (0.5 - mean) / std])
    assert [g.dropped for g in step] == ["", ""]


def test_every_shipped_advantage_is_a_value_of_the_field_and_has_its_row_in_the_documents() -> None:
    field = get_args(get_type_hints(LearnConfig, include_extras=True)["advantage"])[0]
    (values,) = [get_args(choice) for choice in get_args(field) if get_origin(choice) is Literal]
    assert sorted(values) == sorted(ESTIMATORS)
    table = (ROOT / "docs/algorithms.md").read_text("utf-8").partition("## Advantages")[2].partition("## ")[0]
    assert sorted(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == sorted(ESTIMATORS)


@pytest.mark.parametrize("name", [name for name, made in ESTIMATORS.items() if made.group or made.step])
def test_the_configuration_knows_what_a_shipped_advantage_does(name: str) -> None:
    """``within_groups`` where it compares the samples of a prompt; a division that it does not make is refused."""
    made, plain = ESTIMATORS[name], LearnConfig(advantage=name)  # type: ignore[arg-type]
    assert plain.within_groups is (made.group is not None), "LearnConfig.within_groups"
    compare = made.group or made.step
    assert compare is not None
    try:
        divided = LearnConfig(advantage=name, normalize_advantages=True)  # type: ignore[arg-type]
    except ConfigError:
        return
    undivided = LearnConfig(advantage=name, normalize_advantages=False)  # type: ignore[arg-type]
    assert compare([1.0, 0.0, 0.0], divided) != compare([1.0, 0.0, 0.0], undivided), "learn.normalize_advantages"


SAME = [
    [0.3, 0.1 + 0.2, 0.3, 0.3],
    [0.0, 0.1 + 0.2 - 0.3, 0.0, 0.0],
    [1.0, 1.0 - 2**-53, 1.0, 1.0],
    [1000.1, 1000.1 + 1e-10, 1000.1, 1000.1],
    [0.1, 0.10000000149011612, 0.1, 0.1],  # by way of float32
]


@pytest.mark.parametrize("rewards", SAME)
@pytest.mark.parametrize("normalize", [None, False])
@pytest.mark.parametrize("advantage", ["group", "leave_one_out", "global"])
def test_rewards_that_are_equal_but_for_rounding_teach_nothing(
    rewards: list[float], advantage: str, normalize: bool | None
) -> None:
    """Divided by their deviation, errors of rounding would weigh as much as a solved problem."""
    learn = LearnConfig(advantage=advantage, normalize_advantages=normalize)  # type: ignore[arg-type]
    made = group_of(*rewards, advantage=advantage, normalize_advantages=normalize)
    (group,) = complete((made,), learn)
    assert (group.advantages, group.dropped) == ((0.0,) * 4, "equal_rewards")


@pytest.mark.parametrize("rewards", [(1.0, 0.0), (1.0, 1.0), (None, 0.5), (0.0,)])
def test_where_the_kl_alone_teaches_no_reward_does_and_none_drops_a_group(rewards: tuple[float | None, ...]) -> None:
    learn = LearnConfig(advantage="none", kl_coef=1.0)
    (group,) = complete((group_of(*rewards, advantage="none", kl_coef=1.0),), learn)
    assert (group.advantages, group.dropped) == ((0.0,) * len(rewards), "")
    assert group.rewards == tuple(r for r in rewards if r is not None)  # they are still told


MINE = """
def my_advantage(rewards, learn):
    return [2 * r - 1 for r in rewards]

def zeros(rewards, learn):
    return [0.0] * len(rewards)

def naive(rewards, learn):
    return [r - sum(rewards) / len(rewards) for r in rewards]

def later(rewards, learn):
    return [r / (sum(rewards) - 2.25) for r in rewards]

def one(rewards):
    return rewards

def few(rewards, learn):
    return rewards[:1]

def text(rewards, learn):
    return ["much"] * len(rewards)

def no_number(rewards, learn):
    return [float("nan")] * len(rewards)
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "advantages_of_mine.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.promise("own-functions")
def test_a_function_of_the_user_sees_the_scored_samples_and_decides_what_teaches(mine: None) -> None:
    group = group_of(1.0, None, 0.0, advantage="advantages_of_mine:my_advantage")
    assert (group.advantages, group.dropped) == ((1.0, 0.0, -1.0), "")
    assert group_of(1.0, 1.0, advantage="advantages_of_mine:my_advantage").dropped == ""
    assert group_of(1.0, 0.0, advantage="advantages_of_mine:zeros").dropped == "equal_rewards"
    assert any(estimate([0.1] * 3, LearnConfig(advantage="advantages_of_mine:naive")))  # an error of rounding
    assert group_of(0.1, 0.1, 0.1, advantage="advantages_of_mine:naive").dropped == "equal_rewards"
    assert group_of(0.1, 0.2, 0.1, advantage="advantages_of_mine:naive").dropped == ""
    assert group_of(None, None, advantage="advantages_of_mine:zeros").dropped == "too_few_scored"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("one", r"cannot be called with 2 arguments .*write `def one\(rewards, learn\)`"),
        ("few", r"cannot be used \(ValueError: \[0.0\] for rewards=\[0.0, 1.0, 1.0, 0.5\], and not a finite number"),
        ("text", r"cannot be used \(ValueError: could not convert string to float: 'much'\)"),
        ("no_number", ".*not a finite number for each"),
    ],
)
def test_an_advantage_of_the_user_that_cannot_be_used_is_refused_before_the_run(
    mine: None, name: str, says: str
) -> None:
    with pytest.raises(ConfigError, match=rf"^learn\.advantage='advantages_of_mine:{name}': {says}.*GroupAdvantage$"):
        estimator(f"advantages_of_mine:{name}")
    with pytest.raises(ConfigError, match=r"advantages_of_mine:later': cannot be used \(ZeroDivisionError"):
        group_of(2.0, 0.25, advantage="advantages_of_mine:later")
