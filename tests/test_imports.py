"""Import contracts, interfaces of packages, and imports on a machine that has no GPU library."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT

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
    files = (path.relative_to(ROOT).with_suffix("") for path in (ROOT / package).rglob("*.py"))
    return sorted(".".join(path.parts) for path in files if not path.stem.startswith("__"))


@pytest.mark.promise("imports")
def test_the_import_contracts_hold() -> None:
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr


NUMBERS = (*GPU_LIBRARIES, "numpy", "overlap", "recipes")
DRAWING = (*GPU_LIBRARIES, "numpy", "recipes", "tensorboard", "matplotlib")
LIGHT = ("overlap", "overlap.cli", "overlap.config", "overlap.pipeline", "overlap.policy")


@pytest.mark.promise("imports")
@pytest.mark.parametrize(
    ("absent", "names"),
    [
        pytest.param(NUMBERS, modules_of("sandbox"), id="sandbox"),
        pytest.param(DRAWING, modules_of("overlap/record"), id="record"),
        pytest.param((*GPU_LIBRARIES, "recipes"), (*LIGHT, "overlap.verify"), id="overlap"),
    ],
)
def test_what_needs_no_library_of_numbers_or_models_imports_without_it(
    absent: tuple[str, ...], names: list[str]
) -> None:
    result = import_without(absent, *names)
    assert result.returncode == 0, result.stderr
    blocked = import_without(absent, f"{absent[0]}.nn")
    assert "ModuleNotFoundError" in blocked.stderr


def test_what_the_readme_names_is_there_after_a_plain_import() -> None:
    names = ("core.LeftOut", "errors.ConfigError", "Config", "Task", "chat_prompt", "load_config", "train")
    code = (
        "import sys\n"
        "for name in sys.argv[1:]:\n"  # each where nothing else was imported
        "    for module in [module for module in sys.modules if module.split('.')[0] == 'overlap']:\n"
        "        del sys.modules[module]\n"
        "    import overlap\n"
        "    eval(f'overlap.{name}')"
    )
    command = [sys.executable, "-c", code, *names]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr


def check_interfaces(root: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts/checks/interfaces.py"), str(root)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_names_are_imported_from_the_modules_that_define_them() -> None:
    result = check_interfaces(ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("place", "line", "said"),
    [
        ("beside.py", "from overlap.package._inner import thing", "_inner is private to its package"),
        ("beside.py", "import overlap.package._inner", "_inner is private to its package"),
        ("beside.py", "def f():\n    from overlap.package.inner import _thing", "_thing is private to its package"),
        ("beside.py", "from overlap.package.inner import thing, __all__", ""),
        ("package/beside.py", "from overlap.package._inner import thing", ""),
        ("package/__init__.py", "from overlap.package.inner import thing", "code in an __init__"),
        ("package/__init__.py", '"""Described."""', ""),
        ("core/__init__.py", "from overlap.core.nouns import thing", ""),
    ],
)
def test_an_import_of_what_is_private_or_handed_on_is_named_with_its_line(
    tmp_path: Path, place: str, line: str, said: str
) -> None:
    path = tmp_path / "overlap" / place
    path.parent.mkdir(parents=True)
    path.write_text(f"{line}\n")
    result = check_interfaces(tmp_path)
    assert result.returncode == bool(said), result.stdout
    assert said in result.stdout
