"""What the paired tests and the map of pass rates say of rows of groups.jsonl."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from overlap.analysis.run_data import RunData
from overlap.report.compare import paired_tests
from overlap.report.problem_map import pass_rate_map


def run_of(folder: Path, split: str, solved: list[int], samples: int = 20) -> RunData:
    """A run with a group of each problem after step 5: how many of its samples were solved."""
    folder.mkdir()
    (folder / "config.yaml").write_text("run: {eval_samples: 20}\n")
    rows = [
        {"split": split, "step": 5, "group": k, "prompt_id": f"p{k}", "samples": samples, "solved": good, "failed": 0,
         "truncated": 0, "tokens": 9, "reward": good / samples, "reward_std": 0.0, "dropped": "", "verdicts": {},
         "weak": 0, "programs": 0, "learned": split == "train"}
        for k, good in enumerate(solved)
    ]  # fmt: skip
    (folder / "groups.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return RunData(folder)


@pytest.mark.parametrize(
    ("second", "says"),
    [
        ([15] * 12, "better (12 problems)"),
        ([5] * 12, "worse (12 problems)"),
        ([20, 0, 20, 0, 20, 0, 20, 0, 20, 0, 20, 4], "no clear difference: the interval includes 0"),
    ],
)
def test_a_run_is_better_only_where_its_interval_says_so(tmp_path: Path, second: list[int], says: str) -> None:
    runs = [run_of(tmp_path / "a", "heldout", [10] * 12), run_of(tmp_path / "b", "heldout", second)]
    assert says in paired_tests(runs, ["a", "b"])


@pytest.mark.parametrize(
    ("solved", "level"), [(0, 0), (1, 1), (4, 1), (5, 2), (9, 2), (10, 3), (15, 4), (19, 4), (20, 5)]
)
def test_only_none_and_all_have_the_colours_of_none_and_all(tmp_path: Path, solved: int, level: int) -> None:
    page = pass_rate_map(run_of(tmp_path / "a", "train", [solved]))
    assert [k for k in range(6) if f'<path fill="var(--m{k})"' in page] == [level]
