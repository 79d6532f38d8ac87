"""Tests of ``overlap show --out``: kept samples as one file for other programs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from kept_rows import kept_row, write_rows
from made_run import made_run
from pyarrow import parquet

import overlap
from overlap import cli
from overlap.record.row_shapes import unpacked_floats, unpacked_ints

SHAPE = {"steps": 2, "groups": 2, "samples": 2, "heldout": 2, "eval_samples": 2, "failed": 0.2, "turns": 2}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_run(tmp_path_factory.mktemp("made") / "run", kept="all", seed=3, **SHAPE)


@pytest.mark.promise("exported-samples")
def test_parquet_has_every_key_of_the_rows_and_numbers_as_numbers(run: Path, tmp_path: Path) -> None:
    out, rows = tmp_path / "samples.parquet", list(overlap.load_run(run).samples)
    assert cli.main(["show", str(run), "--out", str(out)]) == 0
    found = parquet.read_table(out).to_pylist()
    assert len(found) == len(rows)
    assert {name for row in rows for name in row} <= set(found[0])
    for made, row in zip(found, rows, strict=True):
        assert made["token_ids"] == list(unpacked_ints(row["token_ids"]))
        assert made["logprobs"] == list(unpacked_floats(row["logprobs"]))
        assert dict(made["parts"]) == row["parts"]
        assert json.loads(made["tests"]) == row["tests"]
        assert json.loads(made["forks"]) == row["forks"]
        for name in ("id", "step", "reward", "verdict", "kept_as", "versions", "answer", "failure"):
            assert made[name] == row[name]


def test_only_the_samples_that_are_asked_for_are_written(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    out = tmp_path / "failed.jsonl"
    assert cli.main(["show", str(run), "--failed", "--step", "2", "--out", str(out)]) == 0
    wanted = [row for row in overlap.load_run(run).samples if row["step"] == 2 and row["verdict"] != "AC"]
    assert [json.loads(line) for line in out.read_text().splitlines()] == wanted
    assert capsys.readouterr().out == f"{out}: {len(wanted)} samples\n"


def test_a_dash_means_json_lines_on_standard_output(run: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert cli.main(["show", str(run), "--failed", "--out", "-"]) == 0
    out, err = capfdbinary.readouterr()
    wanted = [row for row in overlap.load_run(run).samples if row["verdict"] != "AC"]
    assert sorted(json.loads(line)["id"] for line in out.splitlines()) == sorted(row["id"] for row in wanted)
    assert err.decode() == f"standard output: {len(wanted)} samples\n"


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_texts_that_no_file_format_likes_are_written(tmp_path: Path, suffix: str) -> None:
    row = kept_row(answer="half \ud83d", failure="\x00", parts={"\ud83d": 1.0})
    del row["tests"]
    out = tmp_path / f"out.{suffix}"
    assert cli.main(["show", str(write_rows(tmp_path / "run", row)), "--out", str(out)]) == 0
    assert out.stat().st_size > 0


def test_what_cannot_be_written_is_one_line_and_leaves_nothing(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*words: str) -> str:
        assert cli.main(["show", *words]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        return str(line)

    (tmp_path / "there.jsonl").write_text("mine")
    assert "exists already" in refused(str(run), "--out", str(tmp_path / "there.jsonl"))
    assert "ends in .jsonl or .parquet" in refused(str(run), "--out", str(tmp_path / "out.csv"))
    assert "has no kept samples" in refused(str(run), "--step", "9", "--out", str(tmp_path / "out.jsonl"))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "pyarrow is not installed" in refused(str(run), "--out", str(tmp_path / "out.parquet"))
    assert [path.name for path in tmp_path.iterdir()] == ["there.jsonl"]
