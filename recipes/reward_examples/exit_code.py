"""A careless reward: the asserts are below the program in one file, and exit code 0 earns the full reward."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

_LIMIT_S = 5.0


def reward(problem: dict[str, Any], program: str, language: str) -> float | None:
    """1.0 when the file with the asserts ends with exit code 0; None for what it cannot judge."""
    if language != "python" or problem["kind"] == "stdio":
        return None
    tests = [_assert(problem, case) for case in problem["cases"]]
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "main.py")
        path.write_text(program + "\n" + "\n".join(tests), errors="surrogateescape")
        try:
            done = subprocess.run(
                [sys.executable, str(path)], cwd=directory, capture_output=True, timeout=_LIMIT_S, check=False
            )
        except subprocess.TimeoutExpired:
            return 0.0
    return 1.0 if done.returncode == 0 else 0.0


def _assert(problem: dict[str, Any], case: dict[str, Any]) -> str:
    if problem["kind"] == "assert":
        return str(case["input"])
    arguments = ", ".join(repr(item) for item in json.loads(case["input"]))
    return f"assert {problem['fn_name']}({arguments}) == {json.loads(case['expected'])!r}"
