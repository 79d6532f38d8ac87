"""Tests of what the report of ``overlap judge-again`` calls an outcome; the command has tests of its own."""

from __future__ import annotations

import pytest

from overlap.replay.judge_again import Outcome


@pytest.mark.parametrize(
    ("outcome", "name"),
    [
        (Outcome(0.3, "WA"), "WA"),
        (Outcome(None, ""), "not judged"),
        (Outcome(0.0, ""), "reward 0"),
        (Outcome(1.0, ""), "reward 1"),
        (Outcome(-0.25, ""), "reward < 0"),
        (Outcome(1.25, ""), "reward > 1"),
    ],
)
def test_an_outcome_is_named_by_its_verdict_or_by_its_reward(outcome: Outcome, name: str) -> None:
    assert outcome.name == name


def test_rewards_that_all_differ_share_one_row_of_the_table() -> None:
    assert {Outcome(n / 1000, "").name for n in range(1, 1000)} == {"reward 0..1"}
