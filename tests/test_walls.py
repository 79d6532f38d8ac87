"""The walls between the rooms: import contracts, and imports on a machine that has no GPU library."""

from __future__ import annotations

import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
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
    return [package, *sorted(".".join(path.parts) for path in files if not path.stem.startswith("__"))]


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


def test_what_the_readme_names_is_there_after_a_plain_import() -> None:
    names = ("core.LeftOut", "errors.ConfigError", "config.Config", "Task", "chat_prompt", "load_config", "train")
    for name in names:  # each in an interpreter that has imported nothing else
        command = [sys.executable, "-c", f"import overlap; overlap.{name}"]
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert result.returncode == 0, result.stderr


def test_a_blocked_library_fails_to_import() -> None:
    result = import_without(GPU_LIBRARIES, "torch.nn")
    assert result.returncode == 1
    assert "ModuleNotFoundError" in result.stderr


def check_doors(root: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts/checks/doors.py"), str(root)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_no_file_imports_past_another_rooms_door() -> None:
    result = check_doors(ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("from overlap.room.inner import thing", "past the door of overlap.room"),
        ("import overlap.room.inner", "past the door of overlap.room"),
        ("from overlap.room import other", "does not hand out other"),
        ("def f():\n    from overlap.room.inner import thing", "past the door of overlap.room"),
        ("from overlap.room import thing", ""),
    ],
)
def test_an_import_past_a_door_is_named_with_its_line(tmp_path: Path, line: str, said: str) -> None:
    room = tmp_path / "overlap" / "room"
    room.mkdir(parents=True)
    (room / "__init__.py").write_text('from overlap.room.inner import thing\n__all__ = ["thing"]\n')
    (room / "inner.py").write_text("thing = other = 1\n")
    (tmp_path / "overlap" / "hall.py").write_text(f"{line}\n")
    result = check_doors(tmp_path)
    assert result.returncode == bool(said), result.stdout
    assert said in result.stdout


@pytest.mark.parametrize("house", ["overlap", "sandbox"])
def test_rooms_import_each_other_in_no_circle_not_even_for_types(house: str) -> None:
    graph = grimp.build_graph(house, exclude_type_checking_imports=False, cache_dir=None)
    arrows = {
        room: {
            ".".join(target.split(".")[:2])
            for module in {room, *graph.find_descendants(room)}
            for target in graph.find_modules_directly_imported_by(module)
        }
        - {room, house}
        for room in graph.find_children(house)
    }
    assert tuple(TopologicalSorter(arrows).static_order())  # raises CycleError, which names the circle
