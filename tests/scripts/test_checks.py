"""The checks of ``scripts/checks/`` on small trees: what they refuse, and what they let pass."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT


def check(name: str, root: Path, files: dict[str, str]) -> tuple[int, list[str]]:
    """Write the files and run a check on them; returns its exit code and its lines."""
    for file, text in files.items():
        path = root / f"{file}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    command = [sys.executable, str(ROOT / "scripts" / "checks" / f"{name}.py"), str(root)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    return done.returncode, done.stdout.replace(f"{root}/", "").splitlines()


def test_a_long_file_is_warned_of_and_a_longer_one_is_refused(tmp_path: Path) -> None:
    code, lines = check("sizes", tmp_path, {"overlap/long": "x = 1\n" * 401})
    assert code == 0
    assert lines[0].startswith("warning: overlap/long.py: 401 lines")
    code, lines = check("sizes", tmp_path, {"overlap/long": "x = 1\n" * 501})
    assert (code, lines) == (1, ["overlap/long.py: 501 lines, at most 500: split it"])


def test_a_long_function_is_refused_and_its_docstring_does_not_count(tmp_path: Path) -> None:
    documented = 'def f() -> None:\n    """' + "said\n" * 60 + '    """\n' + "    pass\n" * 40
    assert check("sizes", tmp_path, {"overlap/short": documented}) == (0, ["1 files within their sizes"])
    code, lines = check("sizes", tmp_path, {"overlap/long": "def f() -> None:\n" + "    pass\n" * 50})
    assert (code, lines) == (1, ["overlap/long.py:1: f: 51 lines, at most 50: split it"])


def test_a_public_name_that_two_modules_define_is_refused_with_both_places(tmp_path: Path) -> None:
    files = {"overlap/a": "class Asked:\n    pass\n", "sandbox/b": "x = 1\n\ndef Asked(): ...\n"}
    code, lines = check("names", tmp_path, files)
    assert code == 1
    assert lines[0].startswith("Asked: overlap/a.py:1, sandbox/b.py:3:")


def test_definitions_under_a_condition_count(tmp_path: Path) -> None:
    both = "if x:\n    def f(): ...\nelse:\n    def f(): ...\n"
    assert check("names", tmp_path, {"overlap/a": both})[0] == 0
    assert check("names", tmp_path, {"overlap/b": "try:\n    pass\nexcept OSError:\n    def f(): ...\n"})[0] == 1


@pytest.mark.parametrize(
    "text",
    [
        "def _private(): ...\n",
        "class A{n}:\n    def method(self): ...\n",
        "def main(): ...\n",
        "def f{n}():\n    def inner(): ...\n",
    ],
)
def test_private_names_methods_inner_functions_and_entry_points_may_repeat(tmp_path: Path, text: str) -> None:
    files = {f"overlap/m{n}": text.replace("{n}", str(n)) for n in (1, 2)}
    assert check("names", tmp_path, files)[0] == 0


def test_names_that_a_package_hands_on_are_no_second_definitions(tmp_path: Path) -> None:
    face = "from overlap.run import Run\n\ndef train():\n    from overlap.run import train\n    return train()\n"
    inner = "class Run: ...\n\ndef train(): ...\n"
    assert check("names", tmp_path, {"overlap/__init__": face, "overlap/run": inner})[0] == 0


def test_a_module_name_that_says_little_is_given_once(tmp_path: Path) -> None:
    files = dict.fromkeys(("overlap/a/wire", "sandbox/wire", "overlap/a/files", "sandbox/files"), "")
    code, lines = check("names", tmp_path, files)
    assert code == 1
    assert lines[0] == "module wire: overlap/a/wire.py, sandbox/wire.py: rename all but one"
    assert len(lines) == 2
