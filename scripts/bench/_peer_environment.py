"""Environments of other projects: a package and what it lacks, above the packages of this environment."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

from _shared import ROOT

INSTALL_S = 900.0


def make_environment(folder: Path, *packages: str) -> Path:
    """The Python of an environment that has ``packages`` (without what they ask for) above those of this one; made in
    ``folder`` where it is missing.
    """
    python, made = folder / "bin" / "python", folder / "installed"
    if made.exists() and made.read_text().split() == list(packages):
        return python
    uv = Path(sys.executable).parent / "uv"
    install = [uv, "pip", "install", "--quiet", "--no-deps", "--python", python, *packages]
    folder.mkdir(parents=True, exist_ok=True)
    for argv in ([uv, "venv", "--quiet", "--clear", "--python", sys.executable, folder], install):
        subprocess.run(argv, check=True, timeout=INSTALL_S, env=os.environ | {"TMPDIR": str(folder)})  # of uv's locks
    base = sysconfig.get_paths()["purelib"]
    (next(folder.glob("lib/python*")) / "site-packages" / "_base.pth").write_text(f"{base}\n")
    made.write_text("\n".join(packages))
    return python


def run_logged(argv: list[str], log: Path, limit_s: float) -> None:
    """Run a program of this tree with its output in ``log``. Raises SystemExit where it fails."""
    paths = os.pathsep.join((str(ROOT), str(ROOT / "scripts/bench")))
    environment = os.environ | {"PYTHONPATH": paths, "TOKENIZERS_PARALLELISM": "false"}
    with log.open("wb") as file:
        done = subprocess.run(
            argv, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT, timeout=limit_s, check=False
        )
    if done.returncode:
        raise SystemExit(f"{' '.join(argv)} ended with code {done.returncode}; see {log}")
