"""Trackers of whole runs on the fakes: each has the rows of metrics.jsonl, and no fault of one costs a step."""

from __future__ import annotations

import asyncio
import math
import re
import threading
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from places import ROOT
from sessions import Stage, interrupt, play
from tracker_stubs import FileTracker, calls

from overlap.config.fields import TRACKERS
from overlap.config.load import load_config
from overlap.core import Batch
from overlap.core.errors import ConfigError
from overlap.hooks import trackers
from overlap.hooks.callback import RunEnded, StepTaken
from overlap.hooks.checks import named_trackers
from overlap.hooks.trackers import Trackers
from overlap.record.json_lines import read_json_lines
from overlap.record.rundir import WriteFailures

Make = Callable[..., Stage]
NAME = "tracker_stubs:FileTracker"
SOON_S = 10.0


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """A stage whose tracker is a stub that misbehaves as ``does`` says."""
    monkeypatch.setattr(FileTracker, "freed", threading.Event())

    def make(*overrides: str, **does: str) -> Stage:
        monkeypatch.setattr(FileTracker, "does", does)
        return Stage(tmp_path, monkeypatch, f"run.trackers=[tensorboard,'{NAME}']", *overrides)

    yield make
    FileTracker.freed.set()


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """The numbers of metrics.jsonl that are known, those of a step together."""
    joined: dict[int, dict[str, Any]] = {}
    for row in read_json_lines(folder / "metrics.jsonl"):
        joined.setdefault(row["step"], {}).update({name: value for name, value in row.items() if value is not None})
    return list(joined.values())


def rows_at_the_stub(folder: Path) -> list[dict[str, Any]]:
    joined: dict[int, dict[str, Any]] = {}
    for _, row, _ in calls(folder, "row"):
        again = set(joined.setdefault(row["step"], {})) & set(row) - {"step"}
        assert again == set(), "a number has come twice"
        joined[row["step"]].update(row)
    return list(joined.values())


@pytest.mark.promise("trackers")
def test_rows_are_those_of_metrics_jsonl_and_samples_and_the_end_go_too(stage: Make) -> None:
    session = stage("run.eval_samples=1", "run.eval_every=2", "run.steps=3").session(heldout=2)
    figures = play(session)
    assert rows_at_the_stub(session.run.path) == rows_of(session.run.path)
    samples = [(row["step"], count) for _, row, count in calls(session.run.path, "row")]
    assert samples == [(0, 2), (1, 4), (2, 2), (2, 0), (3, 0), (3, 2)]
    assert calls(session.run.path)[-1] == ["end", "finished", True]
    assert figures["not_written"] == []


@pytest.mark.promise("trackers")
def test_a_resumed_run_says_where_it_goes_on(stage: Make) -> None:
    made = stage("run.save_every=2")
    made.learner.on_step = lambda batch: interrupt() if batch.step == 4 else None
    with pytest.raises(asyncio.CancelledError):
        play(made.session())
    again = stage("run.save_every=2")
    session = again.session(*again.reopened())
    play(session)
    assert calls(session.run.path, "start") == [["start", 0, False], ["start", 2, True]]
    last = {row["step"]: row for _, row, _ in calls(session.run.path, "row")}
    assert list(last.values()) == rows_of(session.run.path)


@pytest.mark.promise("by-products", "trackers")
@pytest.mark.parametrize(
    ("how", "says"), [("raise", "ConnectionError: the network is down"), ("exit", "SystemExit: 3")]
)
def test_a_tracker_that_fails_costs_no_step_and_is_told_once(stage: Make, how: str, says: str) -> None:
    made = stage(row=how)
    session = made.session()
    figures = play(session)
    assert (figures["exit"], figures["steps"]) == ("finished", 5)
    (lost,) = figures["not_written"]
    assert lost.startswith(f"tracker {NAME} (callback FileTracker.on_step raised {says} (")
    assert "5 times from step " in lost
    assert made.shown.getvalue().count(f"tracker {NAME} is not being written") == 1
    assert calls(session.run.path)[-1] == ["end", "finished", True]


@pytest.mark.promise("trackers")
def test_a_tracker_that_hangs_costs_its_thread_and_no_step(stage: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "END_S", 0.1)
    session = stage(row="hang").session()
    figures = play(session)
    assert (figures["exit"], figures["steps"]) == ("finished", 5)
    (lost,) = figures["not_written"]
    assert lost.startswith(f"tracker {NAME} (it did not finish within 0.1 s; 6 times from step 5 on")
    assert len(rows_of(session.run.path)) == 5


@pytest.mark.promise("interrupts")
def test_after_ctrl_c_a_tracker_that_hangs_has_less_time(stage: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "INTERRUPTED_S", 0.1)
    made = stage(row="hang")
    made.learner.on_step = lambda batch: interrupt() if batch.step == 2 else None
    with pytest.raises(asyncio.CancelledError):
        play(made.session())
    assert "it did not finish within 0.1 s" in made.shown.getvalue()


def step(number: int, **row: Any) -> StepTaken:
    return StepTaken(number, {"step": number, **row}, Batch(number, number - 1, ()))


def told(event: Any, tracker: Any, folder: Path) -> list[str]:
    """Have ``tracker`` told of an event, and of the end; returns what was lost."""
    failures = WriteFailures()
    run: Any = SimpleNamespace(path=folder)
    feed = Trackers({"mine": tracker}, run, failures)
    feed.put(event)
    feed.put(RunEnded(1, "finished", {}))
    feed.close()
    return list(failures)


def test_what_is_no_finite_number_stays_out(tmp_path: Path) -> None:
    row = {"a": 1.5, "b": math.nan, "c": math.inf, "d": "text", "eval/pass_at_1": 0.5}
    assert told(step(1, **row), FileTracker(), tmp_path) == []
    assert calls(tmp_path, "row") == [["row", {"step": 1, "a": 1.5}, 0]]


def test_what_a_tracker_asks_for_is_not_done(tmp_path: Path) -> None:
    class Asks:
        def on_step(self, run: Any, event: Any) -> str:
            return "stop"

    assert "it returned 'stop'" in told(step(1), Asks(), tmp_path)[0]


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ("[wndb]", "did you mean wandb"),
        ("[x]", "is no tracker; use some of tensorboard, wandb, trackio, or my_module:MyTracker"),
        ("[wandb,wandb]", "twice"),
        ("[wandb]", "run.trackers='wandb': needs a package that is not installed: pip install wandb"),
        ("[no_such:Mine]", "importing no_such raised ModuleNotFoundError"),
        ("['tracker_stubs:FileTrackr']", "did you mean FileTracker"),
        ("['tracker_stubs:NeedsLogin']", "cannot be made without arguments: it raised PermissionError: no login here"),
        ("['fractions:Fraction']", "is no callback: give it one of on_run_start, on_step"),
    ],
)
def test_what_is_no_tracker_is_refused_with_the_way_out(names: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overlap.hooks.services.find_spec", lambda name: None)
    with pytest.raises(ConfigError) as raised:
        named_trackers(load_config(None, [f"run.trackers={names}"]))
    assert says in str(raised.value)
    assert raised.value.exit_code == 2


def test_every_tracker_with_a_name_of_its_own_has_its_class_and_its_row_in_the_documents() -> None:
    paths = [path.partition(":") for path in TRACKERS.values()]
    assert all(isinstance(getattr(import_module(module), name), type) for module, _, name in paths)
    table = (ROOT / "docs/look.md").read_text("utf-8").partition("## Trackers")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)`", table, re.MULTILINE) == list(TRACKERS)


def test_a_full_queue_drops_and_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "QUEUE", 3)
    go, rows = threading.Event(), list[int]()

    class Slow:
        def on_step(self, run: Any, event: Any) -> None:
            assert go.wait(SOON_S)
            rows.append(event.step)

    failures, run = WriteFailures(), SimpleNamespace(path=tmp_path)
    feed = Trackers({"slow": Slow()}, run, failures)  # type: ignore[arg-type]
    for number in range(1, 8):
        feed.put(step(number))
    go.set()
    feed.close()
    assert rows == [1, 2, 3]
    assert list(failures) == ["tracker slow (it has not taken 3 events before; 4 times from the start on)"]
