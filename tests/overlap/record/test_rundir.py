"""The run directory: claimed once, written whole, and every failed write is one clear line."""

from __future__ import annotations

import errno
import math
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from finished_steps import group, result, scored

from overlap.config.fields import Config
from overlap.core import Batch, Prompt
from overlap.core.errors import RunDirError
from overlap.record.checkpoint import RunState
from overlap.record.json_lines import JsonLines, parse_json_lines, read_json_lines, size_until
from overlap.record.rundir import RunDir
from overlap.record.sample_writer import SampleWriter

CFG = Config().to_dict()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunDir]:
    made = RunDir.create(str(tmp_path / "run"), CFG)
    yield made
    made.close()


def batch(step: int = 1, groups: int = 2) -> Batch:
    """Groups of 4, every other one dropped."""
    made = [[scored(n, k, says="WA") for k in range(4)] for n in range(groups)]
    return result(*(group(n, *samples, dropped="x" * (n % 2)) for n, samples in enumerate(made)), step=step).batch


def text_of(prompt: Prompt) -> str:
    return "-".join(map(str, prompt.token_ids))


def writer(run: RunDir) -> SampleWriter:
    return SampleWriter(run, text_of, lambda prompt, answer: None)


def test_a_new_run_holds_the_resolved_config_as_plain_yaml(run):
    stored = yaml.safe_load(run.config.read_text())
    assert stored["rollout"]["stop"] == []
    assert stored["learn"]["lr"] == 1e-6
    sections = "model data rollout episode verify learn critic run cluster history"
    assert list(stored) == sections.split()
    assert [(entry["step"], entry["changes"]) for entry in stored["history"]] == [(0, {})]


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(place)]
    try:
        mounted = subprocess.run(command, capture_output=True, timeout=20, check=False).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("a file system can only be mounted by root")
    yield place
    subprocess.run(["umount", "-l", str(place)], timeout=20, check=True)


@pytest.mark.promise("by-products")
def test_a_disk_that_fills_up_costs_files_and_no_step(tiny_disk):
    made = RunDir.create(str(tiny_disk / "run"), CFG)
    said: list[str] = []
    made.failures.report_to(said.append)
    for step in range(300):
        made.step({"step": step, "reward/mean": 0.5})
        writer(made).step(batch(step), {})
    made.finish({"padding": "x" * 65536})
    made.close()
    assert not made.summary.exists()
    for path in (made.metrics, made.trajectories, made.groups):
        assert path.read_bytes().endswith(b"\n")
        assert read_json_lines(path)
    lost = {line.split(" ")[0] for line in made.failures}
    assert {"trajectories.jsonl", "groups.jsonl", "summary.json"} <= lost
    assert len(said) == len({line.split(" ")[0] for line in said}), "a file is named once"


@pytest.mark.parametrize(("call", "number"), [("open", errno.EROFS), ("write", errno.ENOSPC), ("close", errno.EIO)])
def test_no_failed_write_of_a_file_ends_a_run(tmp_path, monkeypatch, call, number):
    """Whatever fails (the name, the contents, the end) and whyever: the run goes on, and says what is missing."""
    made = RunDir.create(str(tmp_path / "run"), CFG)
    real = getattr(os, call)
    told: list[str] = []
    made.failures.report_to(told.append)

    def failing(first: Any, *args: Any, **kwargs: Any) -> Any:
        named = first if call == "open" else os.readlink(f"/proc/self/fd/{first}")
        if str(made.path) in str(named) and not str(named).endswith("run.log"):
            if call == "close":
                real(first)
            raise OSError(number, os.strerror(number))
        return real(first, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing)
        for step in (1, 2):
            made.step({"step": step, "reward/mean": 0.5})
            writer(made).step(batch(step), {})
        made.close()
    lost = {line.split(" ")[0]: line for line in made.failures}
    assert lost.keys() == {"metrics.jsonl", "trajectories.jsonl", "groups.jsonl"}
    assert all(os.strerror(number) in line for line in lost.values())
    assert len(told) == 3


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


def test_a_torn_last_line_is_left_out(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"step": 1}\n\n{"step": 2, "rew')
    assert read_json_lines(path) == [{"step": 1}]
    assert parse_json_lines(path.read_bytes()) == ([{"step": 1}], 13)
    assert read_json_lines(tmp_path / "none.jsonl") == []


def test_rows_of_later_steps_and_a_torn_line_lie_behind_a_step(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"step": 1}\n{"step": 1}\n{"step": 2}\n{"step": 3, "rew')
    assert [size_until(path, step) for step in (0, 1, 2, 9)] == [0, 24, 36, 36]
    assert size_until(tmp_path / "none.jsonl", 1) == 0


def test_a_line_that_does_not_fit_leaves_no_half_line(tmp_path, monkeypatch):
    lines = JsonLines(tmp_path / "rows.jsonl")
    lines.append({"step": 1})
    real, calls = os.write, []

    def nearly_full(fd: int, data: bytes) -> int:
        calls.append(data)
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data[:5])

    monkeypatch.setattr(os, "write", nearly_full)
    with pytest.raises(RunDirError, match=f"^cannot write {lines.path}: No space left on device; .*$") as caught:
        lines.append({"step": 2})
    assert caught.value.exit_code == 1
    monkeypatch.undo()
    lines.append({"step": 3})
    lines.close()
    lines.close()
    assert lines.path.read_text() == '{"step": 1}\n{"step": 3}\n'


def test_text_that_has_no_utf8_is_written_all_the_same(tmp_path):
    lines = JsonLines(tmp_path / "rows.jsonl")
    lines.append({"answer": "half a \ud83d pair"})
    assert read_json_lines(lines.path) == [{"answer": "half a \ud83d pair"}]
