"""Tests of a run's picture: a whole file whatever the run has recorded."""

from __future__ import annotations

import struct
import warnings
from pathlib import Path

import pytest
from made_run import made_run

from overlap.inspect.picture import write_picture
from overlap.inspect.run_data import RunData, load_run


@pytest.mark.parametrize("steps", [1, 2, 40])
def test_a_picture_of_any_number_of_steps_is_a_whole_png_without_a_warning(tmp_path: Path, steps: int) -> None:
    run, path = load_run(made_run(tmp_path / "run", steps=steps, staleness=1)), tmp_path / "picture.png"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write_picture(run, path, title="a run")
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack(">I", data[16:20]) == (1968,)
    assert data[-8:-4] == b"IEND"


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), 0.0, -3e38])
def test_figures_that_are_no_numbers_are_gaps(tmp_path: Path, value: float | None) -> None:
    (tmp_path / "config.yaml").write_text("run: {}\n")
    rows = [{"step": k, "reward/mean": value, "learn/entropy": value, "time/generate_s": value} for k in range(1, 9)]
    write_picture(RunData(tmp_path, rows), tmp_path / "picture.png")
