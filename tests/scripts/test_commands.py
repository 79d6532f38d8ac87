"""What the commands of ``scripts/`` do before anything is set up."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from places import ROOT


@pytest.mark.parametrize("name", ["train_deepcoder", "eval_deepcoder", "gpu_check"])
def test_help_installs_nothing(name: str, tmp_path: Path):
    nowhere = tmp_path / "venv"
    command = ["bash", ROOT / "scripts" / f"{name}.sh", "--help"]
    environment = os.environ | {"OVERLAP_VENV": str(nowhere)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) > 3
    assert "#!" not in done.stdout
    assert not nowhere.exists()
