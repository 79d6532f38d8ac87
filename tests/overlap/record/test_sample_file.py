"""Tests of reading kept samples by parts: heads, whole rows, files that grow, shrink or are torn."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from kept_rows import kept_row
from made_run import made_run

from overlap.core.errors import ConfigError
from overlap.inspect.run_data import load_run
from overlap.record import sample_file
from overlap.record.row_shapes import BulkRow, GroupRow, HeadRow
from overlap.record.sample_file import SampleFile


def _line(number: int, **more: Any) -> str:
    return json.dumps(kept_row(step=number, failure='said "prompt": here', prompt="p" * 50, **more)) + "\n"


def test_a_head_has_the_values_in_front_of_the_prompt_and_a_row_has_all(tmp_path: Path) -> None:
    path = tmp_path / "trajectories.jsonl"
    path.write_text(_line(1) + _line(2, compile_log="warned"))
    samples = SampleFile(path)
    assert [head.values["step"] for head in samples.heads()] == [1, 2]
    assert {head.values["failure"] for head in samples.heads()} == {'said "prompt": here'}
    assert "prompt" not in samples.heads()[0].values
    assert samples.row(samples.heads()[1])["compile_log"] == "warned"
    assert [row["step"] for row in samples] == [1, 2]


def test_a_torn_last_line_is_left_out_until_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "trajectories.jsonl"
    samples = SampleFile(path)
    assert len(samples) == 0
    path.write_text(_line(1) + _line(2)[:-9])
    assert len(samples) == 1
    path.write_text(_line(1) + _line(2))
    assert len(samples) == 2


def test_a_file_that_was_cut_and_has_grown_longer_since_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "trajectories.jsonl"
    path.write_text(_line(1) + _line(2))
    samples = SampleFile(path)
    assert len(samples) == 2
    path.write_text(_line(1) + _line(3) + _line(4) + _line(5))
    assert [row["step"] for row in samples] == [1, 3, 4, 5]


def test_the_rows_of_a_run_are_those_that_are_documented(tmp_path: Path) -> None:
    run = load_run(made_run(tmp_path / "run", steps=1))
    assert set(run.samples.heads()[0].values) == set(HeadRow.__annotations__)
    assert set(run.groups[0]) == set(GroupRow.__annotations__)
    assert set(run.samples.row(run.samples.heads()[0])) <= {*HeadRow.__annotations__, *BulkRow.__annotations__}


def _without(name: str) -> str:
    row = kept_row()
    del row[name]
    return json.dumps(row) + "\n"


DEEP = "[" * 100_000 + "\n"
HEADS = [_without("step"), _line(2, reward="1"), DEEP, _line(2, parts={"task": "1"}), _line(2, versions=[["x", 0, 1]]),
         "{]\n", "[1]\n", '{"schema": 2, "prompt": "no step"\n' + "x\n", "\n"]  # fmt: skip


@pytest.mark.parametrize("line", HEADS, ids=range(len(HEADS)))
def test_a_row_whose_small_values_are_of_another_form_is_named_by_its_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "trajectories.jsonl"
    path.write_text(_line(1) + line)
    with pytest.raises(ConfigError, match="line 2 holds no sample"):
        SampleFile(path).heads()


ROWS = [
    _line(1, program=True), _line(1, tests=[3]), _line(1, answer=None), _line(1, test={"got": {"head": "a"}}),
    _line(1, forks=[1]), _line(1, token_ids="!!"), _line(1, logprobs="AAA"), _line(1, mask=[0]),
    _line(1, token_ids="AQAAAAIAAAA=", logprobs="AACAPw=="),
    _line(1, forks=[{"text": "", "finish": "stop", "token_ids": "AAA"}]),
]  # fmt: skip


@pytest.mark.parametrize("line", ROWS, ids=range(len(ROWS)))
def test_a_sample_whose_texts_are_of_another_form_is_named_when_it_is_asked_for(tmp_path: Path, line: str) -> None:
    path = tmp_path / "trajectories.jsonl"
    path.write_text(line)
    samples = SampleFile(path)
    with pytest.raises(ConfigError, match="g17s2 is no sample"):
        samples.row(samples.heads()[0])


def test_a_file_that_is_cut_off_while_it_is_read_costs_what_is_gone_and_not_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that goes back to a checkpoint does this below a page that follows it; in a mapped file it is SIGBUS."""
    path = tmp_path / "trajectories.jsonl"
    path.write_text("".join(_line(n, compile_log="x" * 9000) for n in range(2000)))
    samples, checked, calls = SampleFile(path), sample_file.check_form, []

    def cut_off(shape: Any, values: Any) -> None:
        if not calls:
            os.truncate(path, 5000)
        calls.append(1)
        checked(shape, values)

    monkeypatch.setattr(sample_file, "check_form", cut_off)
    assert 0 < len(samples.heads()) < 2000
    assert len(samples.heads()) == 0
    path.write_text(_line(7))
    assert [row["step"] for row in samples] == [7]


def test_another_sample_at_the_place_of_one_that_is_gone_is_not_shown_for_it(tmp_path: Path) -> None:
    path = tmp_path / "trajectories.jsonl"
    path.write_text(_line(1))
    samples = SampleFile(path)
    (head,) = samples.heads()
    path.write_text(_line(2))
    with pytest.raises(ConfigError, match="was changed"):
        samples.row(head)
    assert [row["step"] for row in samples] == [2]
