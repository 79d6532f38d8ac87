"""Names of metrics as other trainers write them: every one of ours that is mapped exists, and no two become one."""

from __future__ import annotations

import posixpath
import re
import sys
import types

import pytest
from places import ROOT

from overlap.trackers.metric_names import NAMES, renamed
from overlap.trackers.services import MlflowRun

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


HOSTILE = (
    "mine/score(strict)", "mine/score[strict]", "mine/score{strict}", "pass@1", "pass_at_1", "p<0.05", "50%", "é/日",
    "", "..x", "a//b", "/a", "a/", "./a", "a/../b", "a/..", "..", ".", "tab\tnew\nline", "a b:c-d.e",
    "x" * 300, "x" * 300 + "y", "x" * 249 + "/y", "x" * 248 + "/.y",
)  # fmt: skip


def test_mlflow_gets_every_metric_under_a_name_of_its_own_that_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """By MLflow's rules: its signs, a path that is normal, 250 characters; a call has 1,000 metrics at most."""
    entities = types.ModuleType("mlflow.entities")
    entities.Metric = lambda name, value, now, step: (name, value)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow", types.ModuleType("mlflow"))
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    calls: list[list[tuple[str, float]]] = []
    tracker = MlflowRun()
    tracker._id, tracker._client = "1", types.SimpleNamespace(log_batch=lambda id, metrics: calls.append(metrics))
    row = {name: float(at) for at, name in enumerate((*HOSTILE, *(f"m{n}" for n in range(1500))))}
    for step in (1, 2):
        tracker.row({"step": step, **row})
    assert [len(call) for call in calls] == [1000, len(row) - 1000] * 2
    first, second = [*calls[0], *calls[1]], [*calls[2], *calls[3]]
    assert first == second
    assert [value for _, value in first] == list(row.values())
    names = [name for name, _ in first]
    assert len(set(names)) == len(row)
    assert names[len(HOSTILE) :] == [f"m{n}" for n in range(1500)]
    for name in names:
        assert re.fullmatch(r"[/\w.\- :]{1,250}", name)
        assert posixpath.normpath(name) == name
        assert not name.startswith(("/", ".."))
