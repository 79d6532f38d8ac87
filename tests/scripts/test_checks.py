"""The checks of ``scripts/checks/`` on small trees: what they refuse, and what they let pass."""

from __future__ import annotations

import ast
import importlib.util
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


LONG, LONGER = "x = 1\n" * 401, "x = 1\n" * 501
DOCUMENTED = 'def f() -> None:\n    """' + "said\n" * 60 + '    """\n' + "    pass\n" * 40
WHOLE = "def f() -> None:\n" + "    pass\n" * 50
EITHER = "if x:\n    def f(): ...\nelse:\n    def f(): ...\n"
FACE = "from overlap.run import Run\n\ndef train():\n    from overlap.run import train\n    return train()\n"
INNER = "class Run: ...\n\ndef train(): ...\n"
LATER = "try:\n    pass\nexcept OSError:\n    def f(): ...\n"
ASKED = {"overlap/a": "class Asked:\n    pass\n", "sandbox/b": "x = 1\n\ndef Asked(): ...\n"}
WIRES = dict.fromkeys(("overlap/a/wire", "sandbox/wire", "overlap/a/files", "sandbox/files"), "")
# what: check, files, how its first line begins, "" where nothing is wrong
TREES: dict[str, tuple[str, dict[str, str], str]] = {
    "a long file is warned of": ("sizes", {"overlap/long": LONG}, "warning: overlap/long.py: 401 lines"),
    "a longer file": ("sizes", {"overlap/long": LONGER}, "overlap/long.py: 501 lines, at most 500: split it"),
    "a docstring does not count": ("sizes", {"overlap/short": DOCUMENTED}, ""),
    "a long function": ("sizes", {"overlap/a": WHOLE}, "overlap/a.py:1: f: 51 lines, at most 50: split it"),
    "a public name that two modules define": ("names", ASKED, "Asked: overlap/a.py:1, sandbox/b.py:3:"),
    "definitions of which one counts": ("names", {"overlap/a": EITHER}, ""),
    "definitions under a condition": (
        "names",
        {"overlap/a": EITHER, "overlap/b": LATER},
        "f: overlap/a.py:2, overlap/",
    ),
    "private names": ("names", dict.fromkeys(("overlap/a", "overlap/b"), "def _private(): ...\n"), ""),
    "methods": ("names", {f"overlap/{n}": f"class A{n}:\n    def method(self): ...\n" for n in "ab"}, ""),
    "entry points": ("names", dict.fromkeys(("overlap/a", "overlap/b"), "def main(): ...\n"), ""),
    "inner functions": ("names", {f"overlap/{n}": f"def f{n}():\n    def inner(): ...\n" for n in "ab"}, ""),
    "names that a package hands on": ("names", {"overlap/__init__": FACE, "overlap/run": INNER}, ""),
    "modules in a circle": (
        "circles",
        {"overlap/a": "from overlap.b import x\n", "overlap/b": "if x:\n    import overlap.a\n"},
        "overlap/a.py: imports itself: overlap.a -> overlap.b -> overlap.a",
    ),
    "a circle that a function closes": (
        "circles",
        {"overlap/a": "from overlap import b\n", "overlap/b": "def f():\n    import overlap.a\n"},
        "",
    ),
    "a docstring that begins with no verb or noun": (
        "words",
        {"overlap/a": '"""Whether it is."""\n'},
        "overlap/a.py:1: begins with 'Whether'",
    ),
    "a word that has a better one": ("words", {"overlap/a": "x = 1  # nobody waits\n"}, "overlap/a.py:1: 'nobody'"),
    "a word of a message": ("words", {"overlap/a": 'x = "nobody waits"\n'}, "overlap/a.py:1: 'nobody'"),
    "a key that has such a word": ("words", {"overlap/a": 'x = "see frames-nobody-reads"\n'}, ""),
    "a module name that says little": ("names", WIRES, "module wire: overlap/a/wire.py, sandbox/wire.py: rename"),
}


@pytest.mark.parametrize("what", TREES)
def test_a_check_refuses_and_lets_pass(tmp_path: Path, what: str) -> None:
    name, files, begins = TREES[what]
    code, lines = check(name, tmp_path, files)
    assert code == (begins != "" and not begins.startswith("warning")), lines
    assert lines[0].startswith(begins)
    assert sum(".py" in line for line in lines) == bool(begins)


@pytest.mark.parametrize(
    ("budgets", "says"),
    [
        ("overlap 9\noverlap/core 3\n", ""),
        ("overlap 9\noverlap/core 2\n", "overlap/core: 3 lines, 2 in scripts/checks/rooms.txt: take something out"),
        ("overlap 9\n", "overlap/core: 3 lines, 0 in scripts/checks/rooms.txt: take something out"),
        ("overlap 9\noverlap/core 3\nsandbox/gone 5\n", "sandbox/gone: 0 lines, 5 in scripts/checks/rooms.txt"),
    ],
)
def test_a_room_has_at_most_the_lines_of_its_budget(tmp_path: Path, budgets: str, says: str) -> None:
    (tmp_path / "scripts" / "checks").mkdir(parents=True)
    (tmp_path / "scripts" / "checks" / "rooms.txt").write_text(budgets)
    code, lines = check("sizes", tmp_path, {"overlap/__init__": "x = 1\n", "overlap/core/a/b": "x = 1\n" * 3})
    assert (code, lines[0].startswith(says)) == (bool(says), True)


OPTIONAL = {"evalplus", "lighteval", "trl", "verl"}
"""Peers that a benchmark imports in an environment of their own."""


def test_every_module_that_a_script_imports_is_there() -> None:
    folders = [*(ROOT / "scripts").iterdir(), ROOT / "tests" / "support"]
    known = {path.stem for folder in folders if folder.is_dir() for path in folder.glob("*.py")}
    missing = {
        f"{path.relative_to(ROOT)}: {module}"
        for path in (ROOT / "scripts").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        for module in ([node.module or ""] if isinstance(node, ast.ImportFrom) else names_of(node))
        if (top := module.partition(".")[0]) not in known | OPTIONAL and importlib.util.find_spec(top) is None
    }
    assert missing == set()


def names_of(node: ast.AST) -> list[str]:
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
