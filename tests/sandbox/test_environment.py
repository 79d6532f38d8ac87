"""The environment is copied in one way only: the one that stands what other threads do to it meanwhile."""

from __future__ import annotations

import ast
import os

import pytest
from places import ROOT

from sandbox import environment


class Going(dict[str, str]):
    """An environment whose variable is gone between the moment when it is listed and the moment when it is read."""

    def __getitem__(self, name: str) -> str:
        self.pop(name)
        raise KeyError(name)

    def get(self, name: str, default: str | None = None) -> str | None:  # type: ignore[override]
        return "here" if name == "STAYS" else default


def test_a_variable_that_goes_while_the_environment_is_copied_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", Going(GOES="x", STAYS="x"))
    assert environment.current() == {"STAYS": "here"}


def test_nobody_in_the_sandbox_reads_the_whole_environment_in_another_way() -> None:
    """What a jail or a caller of rewards sets in its own process has one thread; those set, and read nothing."""
    found = []
    for path in (ROOT / "sandbox").rglob("*.py"):
        for node in ast.walk(tree := ast.parse(path.read_text())):
            for child in ast.iter_child_nodes(node):
                child.parent = node  # type: ignore[attr-defined]
        found += [f"{path.name}:{node.lineno}" for node in ast.walk(tree) if _whole(node)]  # type: ignore[attr-defined]
    assert [where for where in found if not where.startswith("environment.py:")] == []


def _whole(node: ast.AST) -> bool:
    """`os.environ` neither indexed nor asked for one name."""
    if not (isinstance(node, ast.Attribute) and ast.unparse(node) == "os.environ"):
        return False
    parent = node.parent  # type: ignore[attr-defined]
    one = isinstance(parent, ast.Attribute) and parent.attr in ("get", "clear", "update", "setdefault")
    return not one and not isinstance(parent, ast.Subscript)
