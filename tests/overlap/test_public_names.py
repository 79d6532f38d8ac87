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
summary = overlap.train(cfg)
after = summary["pass_at_1"]["after"]
bounds: tuple[float, float] | None = (after["low"], after["high"]) if after else None
prompts: int = summary["prompts"]["train"] + summary["data"]["train"]["left_out"]["long"]["count"]
memory: float = summary["hardware"]["memory_gib"]
age: float = run.status()["oldest"][0]["age_s"]
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


@pytest.mark.parametrize("package", ["overlap", "sandbox"])
def test_a_package_that_imports_on_first_use_says_what_it_does_not_have(package: str) -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        importlib.import_module(package).nothing  # noqa: B018


def test_reading_a_run_imports_neither_the_trainer_nor_the_fields_of_its_configuration() -> None:
    """They take longer to import than 10,000 samples to read."""
    heavy = {"overlap.config.fields", "overlap.learner.learner", "overlap.run.session"}
    code = f"import sys, overlap.record.sample_file\nprint(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_a_caller_is_type_checked_by_our_types(tmp_path: Path, cache: pytest.Cache) -> None:
    (tmp_path / "caller.py").write_text(CALLER)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(cache.mkdir("mypy")), "caller.py"]
    command[-1:-1] = ["--follow-imports=silent", "--config-file", str(ROOT / "setup.cfg")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    faults = [line.rpartition(" ")[2] for line in done.stdout.splitlines() if " error: " in line]
    assert faults == ["[typeddict-item]", "[arg-type]"], done.stdout
