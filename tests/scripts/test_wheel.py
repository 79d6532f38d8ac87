"""The package as it is installed: the sandbox works at once, and a run says what it needs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT

PARTS = ("overlap", "sandbox", "recipes", "requirements", "setup.cfg", "pyproject.toml", "README.md", "LICENSE")


def run(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run([*map(str, words)], cwd=cwd, env=environment, capture_output=True, text=True)


@pytest.mark.wide
@pytest.mark.timeout(600)
def test_a_wheel_in_an_empty_environment_judges_and_says_which_extras_a_run_needs(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for part in PARTS:
        (shutil.copytree if (ROOT / part).is_dir() else shutil.copy)(ROOT / part, source / part)
    pip = [sys.executable, "-m", "pip", "-q"]
    made = run(*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", tmp_path, source, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    (wheel,) = tmp_path.glob("*.whl")
    run(sys.executable, "-m", "venv", tmp_path / "env", cwd=tmp_path)
    bin = tmp_path / "env" / "bin"
    assert run(bin / "pip", "install", "--no-deps", "--no-index", wheel, cwd=tmp_path).returncode == 0
    problem = {"id": "sum", "kind": "stdio", "cases": [{"input": "3 4\n", "expected": "7"}]}
    (tmp_path / "problem.json").write_text(json.dumps(problem))
    (tmp_path / "sum.py").write_text("print(sum(map(int, input().split())))")
    judged = run(bin / "sandbox", "judge", "problem.json", "sum.py", cwd=tmp_path)
    assert (judged.returncode, "AC" in judged.stdout) == (0, True), judged.stderr
    assert run(bin / "sandbox", "--help", cwd=tmp_path).returncode == 0
    trained = run(bin / "overlap", "train", cwd=tmp_path)
    (line,) = trained.stderr.splitlines()
    assert (trained.returncode, "a run needs the extras train and cpu" in line) == (2, True)
