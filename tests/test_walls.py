"""The walls between the rooms: import contracts, and imports on a machine that has no GPU library."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
GPU_LIBRARIES = ("torch", "vllm", "ray", "deepspeed")
# A None in sys.modules makes every import of that name, and of what lies under it, fail.
IMPORT_WITHOUT = """
import importlib, pkgutil, sys
absent, names = (words.split(",") for words in sys.argv[1:])
sys.modules.update(dict.fromkeys(absent))
for name in names:
    importlib.import_module(name)
"""


def import_without(absent: tuple[str, ...], *names: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", IMPORT_WITHOUT, ",".join(absent), ",".join(names)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)


def modules_of(package: str) -> list[str]:
    files = (path for path in (ROOT / package).glob("*.py") if not path.stem.startswith("__"))
    return [package, *sorted(f"{package}.{path.stem}" for path in files)]


def test_the_import_contracts_hold() -> None:
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr


def test_every_sandbox_module_imports_without_any_library_of_numbers_or_models() -> None:
    result = import_without((*GPU_LIBRARIES, "numpy", "overlap", "recipes"), *modules_of("sandbox"))
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    "module",
    [
        "overlap",
        "overlap.cli",
        "overlap.config",
        "overlap.fakes",
        "overlap.pipeline",
        "overlap.policy",
        "overlap.verify",
    ],
)
def test_the_engine_imports_without_a_gpu_library(module: str) -> None:
    result = import_without((*GPU_LIBRARIES, "recipes"), module)
    assert result.returncode == 0, result.stderr


def test_a_blocked_library_fails_to_import() -> None:
    result = import_without(GPU_LIBRARIES, "torch.nn")
    assert result.returncode == 1
    assert "ModuleNotFoundError" in result.stderr
