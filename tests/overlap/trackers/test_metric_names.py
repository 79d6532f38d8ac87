"""Names of metrics as other trainers write them: every one of ours that is mapped exists, and no two become one."""

from __future__ import annotations

import re

import pytest
from places import ROOT

from overlap.trackers import NAMES, renamed

DOCUMENTED = [
    name
    for line in (ROOT / "docs" / "metrics.md").read_text("utf-8").splitlines()
    if line.startswith("| `")
    for name in re.findall(r"`([^`]+)`", line.split("|")[1])
]
"""That this list is that of the metrics is tested in tests/overlap/record/test_metrics.py."""


def is_metric(name: str) -> bool:
    return any(re.fullmatch(re.sub(r"<\w+>", r"\\w+", line), name) for line in DOCUMENTED)


@pytest.mark.parametrize("scheme", NAMES)
def test_each_name_that_is_mapped_is_a_metric_and_gets_a_name_of_its_own(scheme: str) -> None:
    names = NAMES[scheme]
    assert [name for name in names if not is_metric(name)] == []
    assert len(set(names.values())) == len(names)
    assert [theirs for theirs in names.values() if is_metric(theirs) and theirs not in names] == []


def test_a_row_keeps_its_step_and_what_has_no_counterpart() -> None:
    row = {"step": 3, "version": 3, "reward/mean": 0.5, "loop/generating": 2}
    assert renamed(row, "ours") == row
    assert renamed(row, "verl") == {"step": 3, "version": 3, "critic/score/mean": 0.5, "loop/generating": 2}
    assert not is_metric("reward/unheard_of")


@pytest.mark.parametrize("scheme", NAMES)
def test_the_documentation_has_the_whole_map(scheme: str) -> None:
    page = (ROOT / "docs" / "trackers.md").read_text("utf-8")
    missing = [ours for ours, theirs in NAMES[scheme].items() if f"`{ours}`" not in page or f"`{theirs}`" not in page]
    assert missing == []
