"""Tests of ``load_run``: what a run directory says, whole, torn, of a run that goes on, and of none."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

import overlap
from overlap.core.errors import ConfigError


def _run(path: Path, **files: str) -> Path:
    path.mkdir()
    (path / "config.yaml").write_text("run:\n  eval_samples: 2\nhistory:\n- {at: now, step: 0, changes: {}}\n- 1\n")
    for name, text in files.items():
        (path / name.replace("_", ".")).write_text(text)
    return path


def _problem(step: int, name: str, solved: int, **more: Any) -> str:
    row = {"split": "heldout", "step": step, "group": -1, "prompt_id": name, "samples": 2, "solved": solved,
           "failed": 0, "truncated": 0, "tokens": 9, "reward": solved / 2, "reward_std": 0.5, "dropped": "",
           "verdicts": {}, "weak": 0, "programs": 2, "learned": False, **more}  # fmt: skip
    return json.dumps(row) + "\n"


def test_a_run_gives_its_configuration_history_steps_and_summary(tmp_path: Path) -> None:
    rows = (
        '{"step": 0, "eval/pass_at_1": 0.5}\n{"step": 1, "reward/mean": 0.25, "learn/kl": null, "a": "x", "b": [1]}\n'
    )
    run = overlap.load_run(_run(tmp_path / "r", metrics_jsonl=rows, summary_json='{"exit": "finished", "steps": 1}'))
    assert run.config == {"run": {"eval_samples": 2}}
    assert [entry["step"] for entry in run.history] == [0]
    assert [row["step"] for row in run.steps] == [1]
    assert all(math.isnan(run.column(name)[0]) for name in ("learn/kl", "a", "none"))
    assert run.summary is not None
    assert run.summary["exit"] == "finished"
    assert "1 (finished)" in repr(run)
    assert "<table>" in run._repr_html_()


def test_the_summary_of_an_earlier_session_is_not_that_of_a_resumed_run(tmp_path: Path) -> None:
    path = _run(tmp_path / "r", summary_json='{"exit": "finished"}')
    os.utime(path / "summary.json", (1, 1))
    assert overlap.load_run(path).summary is None


def test_evaluations_are_the_rates_over_the_problems_of_each_step(tmp_path: Path) -> None:
    groups = _problem(0, "a", 0) + _problem(0, "b", 1) + _problem(5, "a", 2) + _problem(5, "b", 2, failed=1, samples=3)
    run = overlap.load_run(_run(tmp_path / "r", groups_jsonl=groups + _problem(6, "a", 0, split="train")))
    assert [(point.step, point.rate.at(1).value) for point in run.evaluations] == [(0, 0.25), (5, 1.0)]
    assert run.evaluations[1].rate.failed == 1
    assert "pass@1 after step 5" in repr(run)


def test_all_evaluations_of_a_run_are_in_one_measure(tmp_path: Path) -> None:
    """Rewards that are not passes may be all 0 in the first one."""
    groups = _problem(0, "a", 0) + _problem(5, "a", 0, reward=0.4)
    points = overlap.load_run(_run(tmp_path / "r", groups_jsonl=groups)).evaluations
    assert [point.rate.figures()["measure"] for point in points] == ["mean reward", "mean reward"]
    assert points[1].rate.estimate.value == pytest.approx(0.4)


def test_samples_that_could_not_be_judged_do_not_make_answers_longer(tmp_path: Path) -> None:
    groups = _problem(0, "a", 1, samples=4, failed=2, tokens=40, truncated=4, reward=0.5)
    figures = overlap.load_run(_run(tmp_path / "r", groups_jsonl=groups)).evaluations[0].rate.figures()
    assert (figures["tokens_mean"], figures["truncated_share"], figures["samples"]) == (10, 1.0, 2)


def test_the_table_has_a_row_for_each_step(tmp_path: Path) -> None:
    rows = '{"step": 1, "reward/mean": 0.25}\n{"step": 2, "reward/mean": 0.5}\n'
    table = overlap.load_run(_run(tmp_path / "r", metrics_jsonl=rows)).table()
    assert list(table["reward/mean"]) == [0.25, 0.5] if hasattr(table, "columns") else table[1]["step"] == 2


@pytest.mark.parametrize("given", ["missing", ""])
def test_a_place_without_a_run_is_refused_by_its_name(tmp_path: Path, given: str) -> None:
    with pytest.raises(ConfigError, match=r"missing|give a path"):
        overlap.load_run(str(tmp_path / given) if given else given)


DEEP = "[" * 100_000 + "\n"
BROKEN = {
    "config.yaml": ("{]\n", "- 1\n", "run: 3\n", DEEP),
    "metrics.jsonl": ("{]\n", "{}\n", '{"step": null}\n', "[1]\n", DEEP),
    "groups.jsonl": (
        "{]\n",
        "null\n",
        _problem(0, "a", 0, tokens="x"),
        _problem(0, "a", 0, verdicts={"WA": "x"}),
        DEEP,
    ),
    "summary.json": ("{]", "[]", "3", '{"exit": null}', DEEP),
}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in BROKEN.items() for text in texts])
def test_a_file_of_another_form_is_named_and_costs_no_traceback(tmp_path: Path, name: str, text: str) -> None:
    path = _run(tmp_path / "r")
    (path / name).write_text(text)
    run = overlap.load_run(path)
    with pytest.raises(ConfigError, match=name):
        _ = run.config, run.steps, run.groups, run.summary


def test_what_a_notebook_shows_of_a_run_holds_no_markup_and_no_commands_of_its_texts(tmp_path: Path) -> None:
    text = "<b>\x1b[31m\u202e\n"
    run = overlap.load_run(
        _run(tmp_path / "r", summary_json=json.dumps({"exit": text, "warnings": [text]}), metrics_jsonl='{"step": 1}\n')
    )
    assert repr(run).isprintable()
    assert run._repr_html_().isprintable()
    assert "<b>" not in run._repr_html_()


def test_a_run_whose_lock_cannot_be_read_is_read_all_the_same(tmp_path: Path) -> None:
    path = _run(tmp_path / "r", metrics_jsonl='{"step": 1}\n')
    (path / "run.log").symlink_to("run.log")
    assert "1 (did not end in order)" in repr(overlap.load_run(path))
