"""The books of a run that was broken off show what is wrong with it, each fault where it belongs."""

from __future__ import annotations

import copy
import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from places import ROOT

STEPS = 3


class Books:
    """A run of two groups a step, as it was and as it should have been."""

    def __init__(self, folder: Path, check: Callable[..., dict[str, int]]) -> None:
        self.folder, self._check = folder, check
        self.expected = {k: {"step": k, "version": k - 1, "groups": [2 * k, 2 * k + 1]} for k in range(1, STEPS + 1)}
        self.taken: list[dict[str, Any]] = copy.deepcopy([*self.expected.values()])
        self.rows = [{"step": k} for k in self.expected]
        self.samples = [{"step": k, "id": f"g{2 * k}s0"} for k in self.expected]
        self.spans = [{"cat": "learn", "ts": 10.0 * k, "dur": 9.0} for k in self.expected]
        self.told_again: list[tuple[int, int]] = []
        """Steps and groups with a second line."""
        self.untold: set[int] = set()
        """Groups without a line."""
        self.left: list[object] = []

    def found(self) -> dict[str, int]:
        told = [(entry["step"], group) for entry in self.taken for group in entry["groups"] if group not in self.untold]
        told = [*dict.fromkeys(told), *self.told_again]
        groups = [{"split": "train", "step": step, "group": group} for step, group in told]
        for name, rows in (("metrics", self.rows), ("trajectories", self.samples), ("groups", groups)):
            (self.folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (self.folder / "trace.json").write_text(json.dumps([{"ph": "M"}, *self.spans]))
        counted = self._check(self.folder, STEPS, self.taken, self.expected, self.left)
        return {name: count for name, count in counted.items() if count}


@pytest.fixture
def books(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Books:
    monkeypatch.syspath_prepend(ROOT / "scripts" / "chaos")
    return Books(tmp_path, importlib.import_module("_books").check)


def test_a_run_that_is_as_it_should_be_has_clean_books(books: Books) -> None:
    assert books.found() == {}
    books.taken.insert(2, copy.deepcopy(books.taken[1]))  # it went back, and took the same step again
    assert books.found() == {}


WRONG: dict[str, tuple[Callable[[Books], object], dict[str, int]]] = {
    "a group that no step took": (lambda books: books.taken[1].update(groups=[4]), {"lost": 1, "differ": 1}),
    "a group that two steps took": (lambda books: books.taken[2].update(groups=[5, 6, 7]), {"twice": 1, "differ": 1}),
    "another step than before the rewind": (
        lambda books: books.taken.insert(1, {"step": 2, "version": 1, "groups": [8, 9]}),
        {"differ": 1},
    ),
    "a version that was not counted": (
        lambda books: [entry.update(version=1) for entry in (books.taken[2], books.expected[3])],
        {"differ": 1},
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_with_a_step_is_counted_where_it_belongs(books: Books, name: str) -> None:
    spoil, found = WRONG[name]
    spoil(books)
    assert books.found() == found
