"""What CI runs of the wide tests: those of the packages that a change touches, within a budget."""

from __future__ import annotations

from pathlib import Path

import pytest
from changed import UNKNOWN_S, files_within


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    texts = {"a": "from overlap.pipeline import x", "b": "import overlap.record", "c": "from sandbox.pool import Pool"}
    for name, text in texts.items():
        (tmp_path / f"test_{name}.py").write_text(text)
    return sorted(tmp_path.glob("*.py"))


def test_files_that_name_a_changed_package_or_are_changed_belong_to_the_change(files, tmp_path: Path) -> None:
    changed = {"overlap.pipeline", "test_c.py"}
    assert files_within(1e6, files, changed, {}, "seed", tmp_path) == {"test_a.py", "test_c.py"}


def test_no_more_are_chosen_than_the_budget_allows_and_another_commit_chooses_others(files, tmp_path: Path) -> None:
    changed = {"overlap.pipeline", "overlap.record", "sandbox.pool"}
    chosen = [files_within(UNKNOWN_S, files, changed, {}, str(seed), tmp_path) for seed in range(20)]
    assert {len(names) for names in chosen} == {1}
    assert set().union(*chosen) == {"test_a.py", "test_b.py", "test_c.py"}


def test_a_change_of_no_package_chooses_nothing(files, tmp_path: Path) -> None:
    assert files_within(1e6, files, {"README.md"}, {}, "seed", tmp_path) == set()
