"""overlap export-samples: the samples of a run in the files of verl and TRL, and as Parquet."""

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
from overlap.analysis.row_shapes import unpacked_floats, unpacked_ints

SHAPE = {"steps": 2, "groups": 2, "samples": 2, "heldout": 2, "eval_samples": 2, "failed": 0.2, "turns": 2}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_run(tmp_path_factory.mktemp("made") / "run", kept="all", seed=3, **SHAPE)


@pytest.fixture(scope="module")
def rows(run: Path) -> list[dict]:
    return list(overlap.load_run(run).samples)


def exported(run: Path, form: str, out: Path) -> Path:
    assert cli.main(["export-samples", str(run), "--as", form, "--out", str(out)]) == 0
    return out


def test_verl_gets_a_file_for_each_step_with_its_own_columns_first(run: Path, rows: list[dict], tmp_path: Path) -> None:
    out = exported(run, "verl", tmp_path / "verl")
    files = {str(path.relative_to(out)): path.read_text().splitlines() for path in out.rglob("*.jsonl")}
    assert sorted(files) == ["heldout/0.jsonl", "heldout/2.jsonl", "train/1.jsonl", "train/2.jsonl"]
    first = json.loads(files["train/1.jsonl"][0])
    (row,) = [row for row in rows if (row["step"], row["id"]) == (1, first["id"])]
    assert list(first)[:5] == ["input", "output", "gts", "score", "step"]
    assert [first[name] for name in ("input", "output", "score")] == [row["prompt"], row["answer"], row["reward"]]
    assert json.loads(first["gts"])["inputs"] == [test["input"] for test in row["tests"]]
    assert first["verdict"] == row["verdict"]
    assert sum(map(len, files.values())) == len(rows)


def test_trl_gets_a_table_for_each_step_with_a_column_for_each_part_of_the_reward(
    run: Path, rows: list[dict], tmp_path: Path
) -> None:
    out = exported(run, "trl", tmp_path / "trl")
    names = sorted(str(path.relative_to(out)) for path in out.rglob("*.parquet"))
    assert names == [f"{split}_{step:05d}.parquet" for split, step in (
        ("heldout/completions", 0), ("heldout/completions", 2), ("train/completions", 1), ("train/completions", 2)
    )]  # fmt: skip
    table = parquet.read_table(out / "train" / "completions_00002.parquet")
    assert table.column_names[:4] == ["step", "prompt", "completion", "task"]
    assert table.column_names[-1] == "advantage"
    wanted = [row for row in rows if (row["split"], row["step"]) == ("train", 2)]
    assert table.column("task").to_pylist() == [row["reward"] for row in wanted]
    assert table.column("advantage").to_pylist() == [row["advantage"] for row in wanted]


@pytest.mark.promise("exported-samples")
def test_parquet_has_every_key_of_the_rows_and_numbers_as_numbers(run: Path, rows: list[dict], tmp_path: Path) -> None:
    found = parquet.read_table(exported(run, "parquet", tmp_path / "p") / "samples.parquet").to_pylist()
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


@pytest.mark.parametrize("form", ["verl", "trl", "parquet"])
def test_samples_of_the_earlier_format_and_of_any_text_are_exported(tmp_path: Path, form: str) -> None:
    run = made_run(tmp_path / "run", steps=1, heldout=0, kept="none")
    former = {
        "step": 1, "id": "g0s0", "prompt_id": "p", "prompt": "?", "answer": "half \ud83d", "reward": None,
        "failure": "x", "dropped": "", "verdict": None,
        "tests": [{"index": 0, "verdict": "AC", "cpu_s": 0.1, "message": ""}],
        "tokens": 4, "finish": "stop", "versions": [[0, 0, 4]], "generate_s": 3.0, "verify_s": 0.5,
    }  # fmt: skip
    (run / "trajectories.jsonl").write_text(json.dumps(former) + "\n")
    assert any(exported(run, form, tmp_path / "out").rglob("*.*"))


def test_what_cannot_be_exported_is_one_line_and_leaves_nothing(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(run: Path, form: str, out: Path) -> str:
        assert cli.main(["export-samples", str(run), "--as", form, "--out", str(out)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        return str(line)

    (tmp_path / "there").mkdir()
    assert "exists already" in refused(run, "verl", tmp_path / "there")
    assert "config.yaml is missing" in refused(tmp_path, "verl", tmp_path / "out")
    empty = made_run(tmp_path / "empty", steps=1, kept="none")
    assert "run.samples" in refused(empty, "parquet", tmp_path / "out")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "pip install pyarrow" in refused(run, "trl", tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "there"]


def test_verl_gets_a_sample_that_was_kept_without_its_tests(tmp_path: Path) -> None:
    row = kept_row()
    del row["tests"]
    out = exported(write_rows(tmp_path / "run", row), "verl", tmp_path / "verl")
    (made,) = map(json.loads, (out / "train" / "3.jsonl").read_text().splitlines())
    assert json.loads(made["gts"]) == {"inputs": [], "outputs": []}
