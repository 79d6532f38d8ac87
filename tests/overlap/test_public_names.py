"""What a caller finds in ``overlap`` and ``sandbox``: names, help, and types that hold outside."""

from __future__ import annotations

import importlib
import pydoc
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT

CALLER = """
import overlap

cfg = overlap.load_config({"run": {"steps": 3}}, {"learn.lr": 1e-5}).replace(run={"steps": 4})
gain: float = overlap.train(cfg)["reward"]["gain"]
with overlap.start(cfg) as run:
    step: int = run.status()["step"]
path: str = run.wait()["policy"]["path"]
passed: float = overlap.evaluate(cfg).at(1).value
text: str = overlap.rollout(cfg, limit=1).samples[0].trajectory.text
version: int = overlap.export("runs/first").version
left_out = overlap.core.LeftOut("a", "b")
overlap.train(cfg)["rewards"]
overlap.load_config(5)
"""


@pytest.mark.parametrize("package", ["overlap", "sandbox"])
def test_the_public_names_are_listed_and_described_and_are_there(package: str) -> None:
    module = importlib.import_module(package)
    assert [name for name in dir(module) if not name.startswith("__")] == sorted(module.__all__)
    described = pydoc.plain(pydoc.render_doc(module))
    for name in module.__all__:
        assert getattr(module, name).__module__.startswith(package), name
        assert name in described, name


def test_a_caller_is_type_checked_by_our_types(tmp_path: Path) -> None:
    (tmp_path / "caller.py").write_text(CALLER)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), "caller.py"]
    command[-1:-1] = ["--follow-imports=silent", "--config-file", str(ROOT / "setup.cfg")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    faults = [line.rpartition(" ")[2] for line in done.stdout.splitlines() if " error: " in line]
    assert faults == ["[typeddict-item]", "[arg-type]"], done.stdout
