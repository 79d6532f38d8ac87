"""Each writer of metrics gets every row; one that fails is reported, and the run goes on."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from overlap.record.checkpoint import RunState
from overlap.record.json_lines import read_json_lines
from overlap.record.rundir import RunDir


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunDir]:
    made = RunDir.create(str(tmp_path / "run"), {})
    yield made
    made.close()


def test_rows_are_on_disk_after_each_step_and_numbers_that_are_none_become_null(run):
    run.step({"step": 1, "reward/mean": 0.25, "time/overlap_efficiency": math.nan})
    run.step({"step": 2, "reward/mean": math.inf})
    assert read_json_lines(run.metrics) == [
        {"step": 1, "reward/mean": 0.25, "time/overlap_efficiency": None},
        {"step": 2, "reward/mean": None},
    ]


def test_the_evaluation_before_a_run_is_forgotten_where_it_is_made_again(run):
    run.step({"step": 0, "eval/pass_at_1": 0.5})
    run.step({"step": 1, "reward/mean": 0.5})
    run.rewind(RunState(0, 0))
    assert read_json_lines(run.metrics) == []
    run.step({"step": 1, "reward/mean": 0.5})
    run.step({"step": 1, "eval/pass_at_1": 0.75})  # after the last step
    run.rewind(RunState(1, 1))
    assert [row["step"] for row in read_json_lines(run.metrics)] == [1, 1]


@pytest.mark.parametrize("then", [lambda run: run.step({"step": 3}), lambda run: run.finish({}), RunDir.close])
def test_rows_that_could_not_be_written_are_written_when_there_is_room_again(run, monkeypatch, then):
    told: list[str] = []
    run.failures.report_to(told.append)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, data: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
        run.step({"step": 1})
        run.step({"step": 2})
    then(run)
    assert [row["step"] for row in read_json_lines(run.metrics)][:2] == [1, 2]
    assert not any("metrics" in line for line in run.failures)
    assert "metrics.jsonl is written again, and nothing of it is missing" in told


class Remote:
    """A writer that somebody adds: a service that fails at its second row."""

    name = "metrics.example.com"

    def __init__(self) -> None:
        self.rows: list[Mapping[str, Any]] = []
        self.calls: list[object] = []

    def write(self, row: Mapping[str, Any]) -> bool:
        self.rows.append(row)
        if row["step"] == 2:
            raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
        return False

    def flush(self) -> bool:
        return False

    def rewind(self, step: int) -> None:
        self.calls.append(step)

    def close(self) -> None:
        self.calls.append("close")


def test_a_further_writer_of_metrics_gets_the_rows_from_there_on(run: RunDir) -> None:
    writer = Remote()
    run.add_writer(writer)
    for step in (1, 2, 3):
        run.step({"step": step, "reward/mean": 0.5})
    run.rewind(RunState(1, 1))
    run.close()
    assert [row["step"] for row in writer.rows] == [1, 2, 3]
    assert writer.calls == [1, "close"]
    assert list(run.failures) == ["metrics.example.com (Connection reset by peer; 1 time from step 2 on)"]
