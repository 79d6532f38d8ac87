"""Tests of reading kept samples by parts: heads, whole rows, files that grow, shrink or are torn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from made_run import made_run

from overlap.analysis import SampleFile, load_run, unpacked_floats, unpacked_ints
from overlap.errors import ConfigError


def _line(number: int, **more: Any) -> str:
    row = {"schema": 2, "step": number, "failure": 'said "prompt": here', "prompt": "p" * 50, "answer": "a", **more}
    return json.dumps(row) + "\n"


def test_a_head_has_the_values_in_front_of_the_prompt_and_a_row_has_all(tmp_path: Path) -> None:
    path = tmp_path / "trajectories.jsonl"
    path.write_text(_line(1) + _line(2, tests=[1, 2]))
    samples = SampleFile(path)
    assert [head.values for head in samples.heads()] == [
        {"schema": 2, "step": n, "failure": 'said "prompt": here'} for n in (1, 2)
    ]
    assert samples.row(samples.heads()[1])["tests"] == [1, 2]
    assert [row["step"] for row in samples] == [1, 2]


def test_a_torn_last_line_is_left_out_until_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "trajectories.jsonl"
    path.write_text(_line(1) + _line(2)[:-9])
    samples = SampleFile(path)
    assert len(samples) == 1
    path.write_text(_line(1) + _line(2))
    assert len(samples) == 2


def test_a_file_that_a_restart_has_cut_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "trajectories.jsonl"
    path.write_text(_line(1) + _line(2))
    samples = SampleFile(path)
    assert len(samples) == 2
    path.write_text(_line(7))
    assert [row["step"] for row in samples] == [7]


def test_a_file_that_was_cut_and_has_grown_longer_since_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "trajectories.jsonl"
    path.write_text(_line(1) + _line(2))
    samples = SampleFile(path)
    assert len(samples) == 2
    path.write_text(_line(1) + _line(3) + _line(4) + _line(5))
    assert [row["step"] for row in samples] == [1, 3, 4, 5]


def test_a_missing_file_has_no_samples(tmp_path: Path) -> None:
    assert len(SampleFile(tmp_path / "none.jsonl")) == 0


def test_a_row_of_the_earlier_format_gets_the_head_that_it_lacks(tmp_path: Path) -> None:
    path = tmp_path / "trajectories.jsonl"
    row = {"step": 3, "id": "g17s2", "prompt_id": "p4", "prompt": "?", "answer": "!", "reward": 0.0, "failure": "",
           "dropped": "", "verdict": "WA", "tests": [], "tokens": 5, "finish": "length", "versions": [[0, 0, 5]],
           "generate_s": 1.0, "verify_s": 0.1}  # fmt: skip
    path.write_text(json.dumps(row) + "\n")
    samples = SampleFile(path)
    values = samples.heads()[0].values
    assert (values["schema"], values["group"], values["sample"], values["truncated"]) == (1, 17, 2, True)
    assert set(values) == set(load_run(made_run(tmp_path / "run", steps=1)).samples.heads()[0].values)
    assert samples.row(samples.heads()[0])["answer"] == "!"


@pytest.mark.parametrize("line", ["{]\n", "[1]\n", '{"schema": 2, "prompt": "no step"\n' + "x\n", "\n"])
def test_a_line_that_is_no_sample_is_named_by_its_number(tmp_path: Path, line: str) -> None:
    path = tmp_path / "trajectories.jsonl"
    path.write_text(_line(1) + line)
    with pytest.raises(ConfigError, match=r"line [23] holds no sample"):
        SampleFile(path).heads()


def test_numbers_per_token_come_back_from_their_text() -> None:
    assert list(unpacked_ints("AQAAAAIAAAA=")) == [1, 2]
    assert list(unpacked_floats("AACAPw==")) == [1.0]
