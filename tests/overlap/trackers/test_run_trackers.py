"""Trackers of whole runs on the fakes: each has the rows of metrics.jsonl, and no fault of one costs a step."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from places import SUPPORT
from sessions import Stage, interrupt, play
from tracker_stubs import calls

from overlap.config.fields import TRACKERS
from overlap.config.load import load_config
from overlap.errors import ConfigError
from overlap.record.json_lines import read_json_lines
from overlap.record.rundir import RunDir
from overlap.trackers import feed, run_trackers
from overlap.trackers.kinds import KINDS, TrackerKind, check_trackers
from overlap.trackers.metric_names import NAMES
from overlap.trackers.run_trackers import Trackers

Make = Callable[..., Stage]


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """A stage whose tracker "wandb" is a stub in a process of its own."""
    monkeypatch.setenv("PYTHONPATH", str(SUPPORT))

    def make(*overrides: str, stub: str = "FileTracker", does: dict[str, str] | None = None) -> Stage:
        stubs = {**KINDS, "wandb": TrackerKind(f"tracker_stubs:{stub}", "wandb")}
        monkeypatch.setattr(run_trackers, "KINDS", stubs)
        real = run_trackers.to_json_types
        monkeypatch.setattr(run_trackers, "to_json_types", lambda tree: {**real(tree), "does": does or {}})
        return Stage(tmp_path, monkeypatch, "run.trackers=[tensorboard,wandb]", *overrides)

    return make


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """The rows that a tracker has to have: those of metrics.jsonl without what is not known."""
    rows = read_json_lines(folder / "metrics.jsonl")
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


def rows_at_the_stub(folder: Path) -> list[dict[str, Any]]:
    return [call[1] for call in calls(folder) if call[0] == "row"]


@pytest.mark.promise("trackers")
def test_rows_are_those_of_metrics_jsonl_and_samples_and_the_outcome_go_too(stage: Make) -> None:
    session = stage("run.eval_samples=1", "run.steps=3").session(heldout=2)
    figures = play(session)
    found = calls(session.run.path)
    assert rows_at_the_stub(session.run.path) == rows_of(session.run.path)
    assert len(rows_of(session.run.path)) == 5
    assert [call[1:3] for call in found if call[0] == "samples"] == [["heldout", 0], ["train", 1], ["heldout", 3]]
    sample = next(call for call in found if call[0] == "samples")[3][0]
    assert set(sample) == {"problem", "prompt", "answer", "reward", "verdict", "failure"}
    assert sample["prompt"].startswith("3 4 5")
    assert found[-1][:2] == ["end", "finished"]
    assert {"before/value", "after/value", "reward/last"} <= set(found[-1][2])
    assert figures["not_written"] == []


@pytest.mark.promise("trackers")
def test_a_resumed_run_goes_on_in_the_same_curve(stage: Make) -> None:
    made = stage("run.save_every=2")
    made.learner.on_step = lambda batch: interrupt() if batch.step == 4 else None
    with pytest.raises(asyncio.CancelledError):
        play(made.session())
    again = stage("run.save_every=2")
    session = again.session(*again.reopened())
    play(session)
    starts = [call for call in calls(session.run.path) if call[0] == "start"]
    assert [call[2:4] for call in starts] == [[0, False], [2, True]]
    assert starts[0][1] == starts[1][1] != ""
    last = {row["step"]: row for row in rows_at_the_stub(session.run.path)}
    assert list(last.values()) == rows_of(session.run.path)


def test_a_run_that_goes_back_by_itself_says_so(stage: Make, tmp_path: Path) -> None:
    cfg = load_config(None, ["run.trackers=[wandb]"])
    stage()
    run = RunDir.create(str(tmp_path / "back"), {})
    run.add_writer(trackers := Trackers.open(cfg, run, 0, tmp_path))
    run.step({"step": 1, "reward/mean": math.nan, "name": "no number"})
    trackers.rewind(0)
    trackers.end("finished", {})
    run.close()
    assert calls(run.path)[1:] == [["row", {"step": 1}], ["rewind", 0], ["end", "finished", {"exit": ""}]]


@pytest.mark.promise("by-products", "trackers")
@pytest.mark.parametrize("how", ["raise", "die"])
def test_a_tracker_that_breaks_in_the_middle_costs_no_step_and_is_told(stage: Make, how: str) -> None:
    made = stage(does={"row": how})
    session = made.session()
    figures = play(session)
    assert (figures["exit"], figures["steps"]) == ("finished", 5)
    why = "the network is down" if how == "raise" else "its process has ended (3)"
    (lost,) = figures["not_written"]
    assert lost.startswith("tracker wandb (")
    assert why in lost
    assert made.shown.getvalue().count("tracker wandb is not being written") == 1


def test_one_that_dies_once_loses_a_row_and_goes_on(stage: Make) -> None:
    session = stage(stub="DiesOnce").session()
    figures = play(session)
    assert [row["step"] for row in rows_at_the_stub(session.run.path)] == [1, 3, 4, 5]
    assert len([call for call in calls(session.run.path) if call[0] == "start"]) == 2
    (lost,) = figures["not_written"]
    assert "1 time" in lost


@pytest.mark.promise("trackers")
def test_one_that_hangs_has_a_deadline_at_the_end(stage: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_trackers, "END_S", 0.3)
    session = stage(does={"end": "hang"}).session()
    figures = play(session)
    assert figures["exit"] == "finished"
    (lost,) = figures["not_written"]  # rows that a slow start of the stub has delayed may still wait, too
    assert re.fullmatch(r"tracker wandb \(it did not finish in time; (1 time|\d+ times) from step 5 on\)", lost)


def test_one_that_is_refused_is_bad_input_before_anything_is_started(stage: Make) -> None:
    session = stage(does={"start": "refuse"}).session()
    with pytest.raises(ConfigError, match=r"run\.trackers='wandb': no login here"):
        session.trackers.check_started()
    session.run.close()


def test_one_that_cannot_be_reached_is_left_to_itself(stage: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "RETRY_S", 60.0)
    made = stage(does={"start": "raise"})
    session = made.session()
    session.trackers.check_started()
    figures = play(session)
    assert figures["exit"] == "finished"
    (lost,) = figures["not_written"]
    assert "the network is down" in lost
    assert "tracker wandb cannot be reached: " in made.shown.getvalue()


def test_names_of_other_trainers_go_to_the_trackers_alone(stage: Make) -> None:
    session = stage("run.metric_names=trl", "run.steps=1").session()
    play(session)
    (row,) = rows_at_the_stub(session.run.path)
    (ours,) = rows_of(session.run.path)
    assert (row["reward"], row["step"]) == (ours["reward/mean"], 1)
    assert "reward/mean" not in row


def test_a_package_that_is_missing_is_told_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overlap.trackers.kinds.find_spec", lambda name: None)
    with pytest.raises(ConfigError) as raised:
        check_trackers(load_config(None, ["run.trackers=[mlflow,wandb]"]))
    assert "needs a package that is not installed: pip install mlflow" in str(raised.value)
    assert "pip install wandb" in str(raised.value)
    assert raised.value.exit_code == 2


@pytest.mark.parametrize(
    ("names", "says"),
    [("[wndb]", "did you mean wandb"), ("[x]", "is no tracker; use some of"), ("[wandb,wandb]", "twice")],
)
def test_a_name_that_is_none_is_refused(names: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load_config(None, [f"run.trackers={names}"])


def test_the_configuration_knows_the_trackers_that_there_are() -> None:
    assert list(KINDS) == list(TRACKERS)
    assert load_config(None, []).run.trackers == ("tensorboard",)
    assert load_config(None, ["run.trackers=[]"]).run.trackers == ()
    assert list(NAMES) == ["ours", "verl", "trl"]
