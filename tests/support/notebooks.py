"""Notebooks as scripts: their code cells in order."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from places import ROOT

NOTEBOOKS = ROOT / "notebooks"


def cells(name: str) -> list[dict[str, Any]]:
    """The cells of a notebook."""
    found: list[dict[str, Any]] = json.loads((NOTEBOOKS / name).read_text("utf-8"))["cells"]
    return found


def run_notebook(name: str, folder: Path, *, timeout_s: float, before: dict[str, str] | None = None) -> str:
    """Execute the code cells of a notebook in one interpreter, in ``folder``; returns what they print.

    ``before``: lines of code that are put in front of the cell that has this text.
    """
    code = ["".join(cell["source"]) for cell in cells(name) if cell["cell_type"] == "code"]
    for text, lines in (before or {}).items():
        (at,) = (number for number, cell in enumerate(code) if text in cell)
        code[at] = f"{lines}\n{code[at]}"
    (script := folder / f"{name}.py").write_text("\n\n".join(code))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(script)], cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout_s
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
