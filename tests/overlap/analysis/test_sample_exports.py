"""The samples of a run as Parquet."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from made_run import made_run
from pyarrow import parquet

import overlap
from overlap.analysis.row_shapes import unpacked_floats, unpacked_ints
from overlap.analysis.sample_exports import export_parquet

SHAPE = {"steps": 2, "groups": 2, "samples": 2, "heldout": 2, "eval_samples": 2, "failed": 0.2, "turns": 2}


@pytest.mark.promise("exported-samples")
def test_parquet_has_every_key_of_the_rows_and_numbers_as_numbers(tmp_path: Path) -> None:
    samples = overlap.load_run(made_run(tmp_path / "run", kept="all", seed=3, **SHAPE)).samples
    export_parquet(samples, tmp_path)
    found, rows = parquet.read_table(tmp_path / "samples.parquet").to_pylist(), list(samples)
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
