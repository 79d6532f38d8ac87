"""Rows of metrics that cannot be written are written later, and the run goes on."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Iterator
from pathlib import Path

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
