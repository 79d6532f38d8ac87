"""The figures of a whole run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from overlap.core.json_types import to_json_types
from overlap.record.progress import final_table
from overlap.record.report import summary
from overlap.record.timing import TIMINGS


def rows(count: int) -> list[dict[str, float]]:
    return [
        {f"time/{name}": float(k) for name in TIMINGS}
        | {"step": k, "reward/mean": k / 100, "reward/solved_share": 0.5, "reward/any_solved_share": 0.9}
        | {"rollout/length_mean": 90.0, "rollout/length_max": 256, "rollout/samples": 64, "rollout/tokens": 7000}
        | {"rollout/groups_kept": 6, "rollout/groups_dropped": 2}
        for k in range(1, count + 1)
    ]


def test_the_summary_of_a_run_worked_by_hand():
    some = rows(10)
    for k, row in enumerate(some, 1):
        row |= {"time/step_s": 20.0 if k < 10 else 40.0, "time/exposed_reward_s": 1.0 if k < 10 else 12.0}
    more = {"evaluations": {"before": {"value": 0.1}}, "extra": {"x": 1}}
    made = summary(some, reason="finished", seconds=200, run_dir=Path("run"), **more)
    assert made["reward"] == pytest.approx({"window": 5, "first": 0.03, "last": 0.08, "gain": 0.05, "ratio": 8 / 3})
    assert made["timing"]["learn_s"] == 5
    assert made["timing"]["exposed_reward_share"] == pytest.approx(21 / 220)  # of the totals, not a mean of shares
    assert made["totals"] == {"samples": 640, "tokens": 70000, "groups_kept": 60, "groups_dropped": 20}
    assert made["pass_at_1"] == {"before": {"value": 0.1}}
    assert (made["exit"], made["steps"], made["x"]) == ("finished", 10, 1)


def test_the_first_and_the_last_reward_of_a_short_run_share_no_step():
    rewards = [summary(rows(n), reason="x", seconds=1, run_dir=Path("r"))["reward"] for n in (1, 2, 5)]
    assert [(r["window"], r["first"], r["last"]) for r in rewards] == [
        (1, 0.01, 0.01), (1, 0.01, 0.02), (2, pytest.approx(0.015), pytest.approx(0.045)),
    ]  # fmt: skip


def test_steps_without_a_figure_are_left_out_of_its_median_and_a_run_without_steps_has_a_summary_that_json_takes():
    some = [{"step": 1, "time/learn_s": None}, {"step": 2, "time/learn_s": 4.0}, {"step": 3}]
    assert summary(some, reason="x", seconds=1, run_dir=Path("r"))["timing"]["learn_s"] == 4.0
    made = summary([], reason="error: engine died", seconds=3, run_dir=Path("r"))
    assert json.loads(json.dumps(to_json_types(made), allow_nan=False))["reward"]["first"] is None


def test_the_mean_reward_of_heldout_prompts_stands_in_the_place_of_pass_at_1():
    before = {"measure": "mean reward", "value": -0.25, "low": -0.5, "high": 0.0}
    found = {"before": before, "after": before | {"value": 1.5, "step": 2}}
    more = {"evaluations": found, "measure": "mean reward"}
    made = summary(rows(2), reason="finished", seconds=1, run_dir=Path("r"), **more)
    assert "pass_at_1" not in made
    assert made["heldout_reward"] == found
    text = final_table(made)
    assert "pass@1" not in text
    assert "held-out reward before  -0.250  (95% CI -0.500 to 0.000)" in text
