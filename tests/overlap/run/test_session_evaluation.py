"""A whole session with evaluations, on the fakes: rows, trace, summary, best policy, interruption, resume."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, NotRequired, get_args, get_origin, get_type_hints, is_typeddict

import pytest
from sessions import Stage, Verifier, interrupt, play

from overlap.core import Scored, Trajectory
from overlap.core.errors import StageError
from overlap.record.json_lines import read_json_lines
from overlap.record.metrics import read_steps
from overlap.record.progress import final_table
from overlap.record.run_summary import RunSummary
from overlap.run.session import TrainingSession

EVALUATED = ("run.eval_samples=4", "run.eval_every=2", "run.save_every=1")


class Skilled(Verifier):
    """Held-out samples pass as the version is skilled: 0, 1, 2, 1, ... of 4."""

    SKILL = (0, 0, 2, 2, 1, 1)

    async def score(self, trajectory: Trajectory) -> Scored:
        scored = await super().score(trajectory)
        if trajectory.request.group >= 0:
            return scored
        passed = trajectory.request.sample < self.SKILL[trajectory.spans[-1].version]
        return replace(scored, reward=float(passed))


def session_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *overrides: str, resume: bool = False
) -> TrainingSession:
    stage = Stage(tmp_path, monkeypatch, *EVALUATED, *overrides)
    stage.verifier = Skilled()
    return stage.session(*(stage.reopened() if resume else ()), heldout=3)


def test_the_summary_is_of_the_types_that_it_promises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = play(session_of(tmp_path, monkeypatch, "run.eval_samples=2", "data.drop_solved=0.9"))
    assert mismatch(figures, RunSummary) == []
    figures["policy"]["hidden"] = figures["pass_at_1"]["before"]["low"] = "a"
    assert mismatch(figures, RunSummary) == [".pass_at_1.before.low is 'a'", ".policy has hidden"]


def mismatch(value: Any, kind: Any, place: str = "") -> list[str]:
    """Where a value is not what its TypedDicts say: keys that are missing or not named, and values of other types."""
    if is_typeddict(kind):
        hints, marked = get_type_hints(kind), get_type_hints(kind, include_extras=True)
        needed = {key for key, hint in marked.items() if kind.__total__ and get_origin(hint) is not NotRequired}
        wrong = [f"{place} lacks {key}" for key in needed - value.keys()]
        wrong += [f"{place} has {key}" for key in value.keys() - hints.keys()]
        known = [key for key in value if key in hints]
        return wrong + [line for key in known for line in mismatch(value[key], hints[key], f"{place}.{key}")]
    parts, origin = get_args(kind), get_origin(kind)
    if origin is UnionType:
        found = [mismatch(value, part, place) for part in parts if (part is NoneType) == (value is None)]
        return min(found, key=len)
    if origin is list:
        return [line for k, item in enumerate(value) for line in mismatch(item, parts[0], f"{place}[{k}]")]
    if origin is dict:
        return [line for key, item in value.items() for line in mismatch(item, parts[1], f"{place}.{key}")]
    if kind is Any:
        return []
    return [] if isinstance(value, (int, float) if kind is float else kind) else [f"{place} is {value!r}"]


def test_evaluations_are_in_rows_trace_summary_picture_and_table_and_the_best_checkpoint_stays_beside_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = session_of(tmp_path, monkeypatch, "run.keep_last=1")
    figures = play(session)["pass_at_1"]
    rows = read_json_lines(session.run.metrics)
    assert [row.get("eval/pass_at_1") for row in rows] == [0.0, None, 0.5, None, 0.25, None, 0.25]
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4, 5, 5]
    assert [figures[when]["value"] for when in ("before", "after", "best")] == [0.0, 0.25, 0.5]
    assert (figures["change"]["value"], figures["best"]["step"]) == (0.25, 2)
    lanes = {event.get("cat") for event in json.loads(session.run.trace.read_text())}
    assert "evaluate" in lanes
    assert json.loads((session.run.path / "policy-best" / "evaluation.json").read_text())["step"] == 2
    assert "pass@1 best         50.0%" in final_table(json.loads(session.run.summary.read_text()))
    assert session.run.picture.is_file()
    assert sorted(p.name for p in session.run.checkpoints.iterdir()) == ["step-000002", "step-000005"]


def test_training_is_the_same_with_and_without_evaluations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for every in (0, 1):
        session = session_of(tmp_path / str(every), monkeypatch, f"run.eval_every={every}")
        play(session)
        drop = ("time/", "loop/", "eval/", "verify/queue", "verify/run")
        found.append([{k: v for k, v in r.items() if not k.startswith(drop)} for r in read_steps(session.run.metrics)])
    assert found[0] == found[1]


def test_ctrl_c_during_an_evaluation_keeps_policy_and_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = session_of(tmp_path, monkeypatch)

    class Stuck(Skilled):
        async def score(self, trajectory: Trajectory) -> Scored:
            if trajectory.request.group < 0 and trajectory.spans[-1].version == 4:
                interrupt()
                await asyncio.Event().wait()
            return await super().score(trajectory)

    monkeypatch.setattr("overlap.verify.verifier.SandboxVerifier", lambda *a, **k: Stuck())
    with pytest.raises(asyncio.CancelledError):
        play(session)
    figures = session.summarize(1.0)
    assert (figures["exit"], figures["steps"]) == ("interrupted", 4)
    assert (figures["pass_at_1"]["before"]["value"], figures["pass_at_1"]["best"]["step"]) == (0.0, 2)
    assert figures["pass_at_1"]["after"] is None
    assert session.run.policy.is_dir()
    assert not [p.name for p in session.run.path.iterdir() if "new" in p.name or "partial" in p.name]


def evaluated(session: TrainingSession) -> dict[int, list[str]]:
    """Ids of the samples of each evaluation; the groups are those of the same ones."""
    found: dict[int, list[str]] = {}
    for row in read_json_lines(session.run.trajectories):
        if row["split"] == "heldout":
            found.setdefault(row["step"], []).append(row["id"])
    groups = [row for row in read_json_lines(session.run.groups) if row["split"] == "heldout"]
    assert [(row["step"], row["group"]) for row in groups] == [(step, -1 - n) for step in found for n in range(3)]
    steps = [row["step"] for row in read_json_lines(session.run.groups)]
    assert steps == sorted(steps)
    return found


WHOLE = [f"g{-1 - n}s{k}" for n in range(3) for k in range(4)]


def test_the_samples_of_each_evaluation_are_kept_beside_those_of_the_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = session_of(tmp_path, monkeypatch)
    figures = play(session)["pass_at_1"]
    assert evaluated(session) == dict.fromkeys((0, 2, 4, 5), WHOLE)
    rows = [row for row in read_json_lines(session.run.groups) if (row["split"], row["step"]) == ("heldout", 5)]
    assert sum(row["solved"] for row in rows) / sum(row["samples"] for row in rows) == figures["after"]["value"]


@pytest.mark.parametrize("every", [2, 0])
def test_a_resumed_run_keeps_each_evaluation_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int) -> None:
    """That of the end of the first session too, which stands behind its last checkpoint."""
    play(session_of(tmp_path, monkeypatch, "run.steps=2", f"run.eval_every={every}"))
    session = session_of(tmp_path, monkeypatch, f"run.eval_every={every}", resume=True)
    play(session)
    assert evaluated(session) == dict.fromkeys((0, 2, 4, 5) if every else (0, 2, 5), WHOLE)
    trained = [(row["step"], row["id"]) for row in read_json_lines(session.run.trajectories) if row["split"] == "train"]
    assert len(trained) == len(set(trained))
    assert {step for step, _ in trained} == {1, 2, 3, 4, 5}


def test_what_counts_as_a_stall_is_the_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = session_of(tmp_path, monkeypatch, "run.stall_s=0.5")

    class Stuck(Skilled):
        async def score(self, trajectory: Trajectory) -> Scored:
            return await asyncio.Future()

    monkeypatch.setattr("overlap.verify.verifier.SandboxVerifier", lambda *a, **k: Stuck())
    with pytest.raises(StageError, match=r"nothing for 0\.5 s"):
        play(session)
