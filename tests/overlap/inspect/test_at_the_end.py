"""Tests of a run's own report: it is there however the run ends, and costs no run its end."""

from __future__ import annotations

import asyncio
import errno
import json
import signal
from pathlib import Path
from typing import Any

import pytest
from sessions import Stage, interrupt, play

from overlap.core.errors import RunDirError
from overlap.inspect import report

NOTHING = "overlap.run.session.report_html"


def test_a_run_that_ends_leaves_its_report_and_its_warnings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Stage(tmp_path, monkeypatch).session()
    figures = play(session)
    text = (session.run.path / "report.html").read_text("utf-8")
    assert '"state":"finished","live":false' in text
    assert figures["warnings"] == json.loads(session.run.summary.read_text())["warnings"]
    assert figures["not_written"] == []


def test_an_interrupted_run_leaves_a_report_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Stage(tmp_path, monkeypatch)
    made.learner.on_step = lambda batch: interrupt() if batch.step == 3 else None
    session = made.session()
    with pytest.raises(asyncio.CancelledError):
        play(session)
    assert "interrupted" in (session.run.path / "report.html").read_text("utf-8")


def _full() -> RunDirError:
    error = RunDirError("cannot write report.html")
    error.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    return error


@pytest.mark.promise("by-products")
@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ZeroDivisionError("a figure"), "ZeroDivisionError: a figure"),
        (RunDirError("cannot write report.html"), "cannot write report.html"),
        (_full(), "No space left on device"),
        (KeyboardInterrupt(signal.SIGINT), "interrupted"),
    ],
)
def test_a_report_that_fails_costs_the_run_its_report_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, told: str
) -> None:
    def fail(*_: Any, **__: Any) -> str:
        raise error

    monkeypatch.setattr(NOTHING, fail)
    session = Stage(tmp_path, monkeypatch).session()
    figures = play(session)
    assert figures["exit"] == "finished"
    assert figures["not_written"] == [f"report.html ({told}; 1 time from step 5 on)"]
    assert json.loads(session.run.summary.read_text())["not_written"] == figures["not_written"]


def test_checks_that_fail_are_told_in_the_place_of_warnings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise KeyError("learn/entropy")

    monkeypatch.setattr(report, "run_warnings", fail)
    (warning,) = play(Stage(tmp_path, monkeypatch).session())["warnings"]
    assert "the checks of the run failed (KeyError" in warning


def test_samples_that_are_too_many_are_left_for_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "MOST_BYTES", 10)
    session = Stage(tmp_path, monkeypatch).session()
    play(session)
    text = (session.run.path / "report.html").read_text("utf-8")
    data = json.loads(text.partition('id="data">')[2].partition("</script>")[0])
    assert (data["kept"], data["texts"]) == (0, {})
