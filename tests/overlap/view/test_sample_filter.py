"""Which groups and samples a filter asks for, and what is said of a group."""

from __future__ import annotations

from typing import Any

import pytest
from kept_rows import kept_row

from overlap.view.sample_filter import SampleFilter
from overlap.view.source import rewards_by_step, taught


def group_row(**given: Any) -> dict[str, Any]:
    row = {"split": "train", "step": 3, "group": 17, "prompt_id": "p4", "samples": 4, "solved": 1, "failed": 0,
           "reward": 0.25, "dropped": "", "learned": True, "verdicts": {"AC": 1, "WA": 3}}  # fmt: skip
    return {**row, **given}


@pytest.mark.parametrize(
    ("only", "others"),
    [
        ({"split": "train"}, {"split": "heldout"}),
        ({"step": 3}, {"step": 4}),
        ({"group": 17}, {"group": 18}),
        ({"problem": "p4"}, {"prompt_id": "p5"}),
        ({"verdict": "WA"}, {"verdicts": {"AC": 4}}),
    ],
)
def test_a_group_of_another_place_or_verdict_is_not_asked_for(only: dict[str, Any], others: dict[str, Any]) -> None:
    assert SampleFilter(**only).matches_group(group_row())
    assert not SampleFilter(**only).matches_group(group_row(**others))


@pytest.mark.parametrize(
    ("only", "wanted"),
    [({"failed": True}, {"solved": 0}), ({"dropped": True}, {"dropped": "equal rewards", "learned": False})],
)
def test_a_group_without_the_fault_is_not_asked_for(only: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert SampleFilter(**only).matches_group(group_row(**wanted))
    assert not SampleFilter(**only).matches_group(group_row())


@pytest.mark.parametrize(
    ("only", "wanted"),
    [
        ({"split": "train"}, {"split": "heldout"}),
        ({"step": 3}, {"step": 4}),
        ({"group": 17}, {"group": 18}),
        ({"sample": 2}, {"sample": 1}),
        ({"problem": "p4"}, {"prompt_id": "p5"}),
        ({"verdict": "WA"}, {"verdict": "TLE"}),
        ({"verdict": "WA"}, {"verdict": None}),
        ({"kept_as": "worst"}, {"kept_as": ["best"]}),
        ({"program": "02943bd6c21e9ab3"}, {"program_sha256": ""}),
        ({"failed": True}, {"verdict": "AC"}),
        ({"failed": True}, {"verdict": None, "reward": 1.0}),
    ],
)
def test_a_sample_of_another_kind_is_not_asked_for(only: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert SampleFilter(**only).matches(kept_row())
    assert not SampleFilter(**only).matches(kept_row(**wanted))


@pytest.mark.parametrize(
    ("only", "wanted"),
    [
        ({"failure": True}, {"failure": "WorkerLost", "verdict": None, "reward": None}),
        ({"dropped": True}, {"dropped": "equal rewards"}),
        ({"weak": True}, {"weak": True}),
        ({"truncated": True}, {"truncated": True}),
        ({"verdict": "none"}, {"verdict": None}),
    ],
)
def test_a_sample_without_the_fault_is_not_asked_for(only: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert SampleFilter(**only).matches(kept_row(**wanted))
    assert not SampleFilter(**only).matches(kept_row())


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "yes"),
        ({"dropped": "equal_rewards", "learned": False}, "equal rewards"),
        ({"learned": False}, "no"),
        ({"split": "heldout", "learned": False}, "held-out"),
    ],
)
def test_what_a_group_taught_is_said_in_words(given: dict[str, Any], words: str) -> None:
    assert taught(group_row(**given)) == words


def test_the_reward_of_a_step_is_the_mean_over_the_samples_that_were_judged() -> None:
    rows = [group_row(reward=1.0, failed=3), group_row(reward=0.0), group_row(reward=None, failed=4, step=4)]
    assert rewards_by_step(rows) == {3: 0.2}
