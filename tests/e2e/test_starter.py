"""The folder of ``overlap init`` trains as it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT

from overlap.commands.starting import copy_starter

pytestmark = [pytest.mark.e2e, pytest.mark.wide]


def test_a_step_of_it_is_trained_and_the_last_lines_say_how_to_go_on(tiny_policy: Path, tmp_path: Path) -> None:
    copy_starter(tmp_path / "mine")
    small = [
        "model.prompt_tokens=1700",
        "model.response_tokens=16",
        "run.steps=1",
        "run.save_every=1",
        "learn.micro_batch_tokens=2048",
    ]
    command = [sys.executable, "-m", "overlap.cli", "train", "--config", "config.yaml", f"model.policy={tiny_policy}"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, *small, "run.dir=runs/a", "model.dtype=float32", "run.eval_samples=1"],
        cwd=tmp_path / "mine", env=environment, capture_output=True, text=True, timeout=115,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert any(line.startswith("step 1/1  reward 0.000  solved 0%  entropy ") for line in lines)
    assert [line.split()[0] for line in lines[-3:]] == ["outcome", "look", "next"]
    summary = json.loads((tmp_path / "mine" / "runs" / "a" / "summary.json").read_text())
    assert (summary["exit"], summary["steps"], summary["prompts"]) == (
        "finished",
        1,
        {"train": 2, "heldout": 1, "solved": 0},
    )
