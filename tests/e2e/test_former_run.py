"""A run that an earlier commit began goes on under this one, with the real engine and the real learner."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import former_run
import pytest
from places import SUPPORT

from overlap.record.metrics import read_steps

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


def overlap(folder: Path, *words: str) -> list[dict]:
    command = [sys.executable, "-m", "overlap.cli", *words]
    environment = {"PYTHONPATH": str(SUPPORT)}
    done = subprocess.run(
        command, cwd=folder, env=os.environ | environment, capture_output=True, text=True, timeout=800
    )
    assert done.returncode == 0, done.stderr
    return read_steps(folder / "run" / "metrics.jsonl")


def test_a_former_run_learns_from_the_results_that_its_checkpoint_holds(tmp_path: Path) -> None:
    run = former_run.unpack(tmp_path)
    shutil.rmtree(run / "checkpoints" / "step-000002")
    rows = overlap(tmp_path, "train", "--resume", "run.dir=run", "run.steps=2")
    assert [(row["step"], row["version"]) for row in rows] == [(1, 1), (2, 2)]
    assert rows[-1]["rollout/parity_gap"] <= 1e-4
