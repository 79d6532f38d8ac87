"""What the recorder makes of a finished step."""

from __future__ import annotations

import asyncio
import json
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest

from overlap.core import Batch
from overlap.pipeline import StepResult
from overlap.record import recorder as module
from overlap.record.logs import Console
from overlap.record.looplag import LoopLag
from overlap.record.progress import Progress
from overlap.record.recorder import Recorder
from overlap.record.rundir import RunDir
from overlap.verify import ClusterFigures, NodeFigures


def result(step: int, ended_s: float) -> StepResult:
    span = (ended_s, ended_s)
    return StepResult(Batch(step, step - 1, ()), None, span, span, span, 0.0)


def test_an_evaluation_between_two_steps_is_in_the_row_and_not_in_the_time_of_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    run = RunDir.create(str(tmp_path / "run"), {})
    recorder = Recorder(run, Progress(Console(StringIO()), 3), LoopLag(), lambda prompt: "")

    async def steps() -> None:
        recorder.begin()
        clock.now = 150.0  # an evaluation after step 1
        recorder.evaluated(112.0)
        await recorder.step(result(1, 110.0), {"eval/pass_at_1": 0.5})
        await recorder.step(result(2, 157.0))
        clock.now = 158.0  # the row of step 2 was written meanwhile, which is part of step 3
        await recorder.step(result(3, 161.0))

    asyncio.run(steps())
    recorder.close()
    run.close()
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["time/step_s"] for row in rows] == [10.0, 7.0, 4.0]
    spans = [event for event in json.loads((tmp_path / "run" / "trace.json").read_text()) if event["ph"] == "X"]
    assert [(s["name"], s["dur"]) for s in spans if s["cat"] == "evaluate"] == [("after step 1", 38e6)]
    assert [row.get("eval/pass_at_1") for row in rows] == [0.5, None, None]


class OverNodes:
    """A verifier whose nodes have done what ``figures`` say."""

    def __init__(self, *figures: ClusterFigures) -> None:
        self._figures = list(figures)

    async def score(self, trajectory: object) -> None: ...

    def take_nodes(self) -> ClusterFigures:
        return self._figures.pop(0)


def test_what_nodes_did_in_a_step_is_in_its_row_and_names_them_in_a_file(tmp_path: Path) -> None:
    run = RunDir.create(str(tmp_path / "run"), {})
    recorder = Recorder(run, Progress(Console(StringIO()), 1), LoopLag(), lambda prompt: "")
    before, step = (ClusterFigures(10.0, (NodeFigures("n", 2, "A", judged=j, run_s=10.0),)) for j in (77, 5))
    recorder.traffic.verifier(OverNodes(before, step))  # type: ignore[arg-type]

    async def steps() -> None:
        recorder.begin()
        await recorder.step(result(1, 110.0))

    asyncio.run(steps())
    recorder.close()
    run.close()
    (row,) = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    assert (row["nodes/judged"], row["nodes/busy_share"]) == (5, 0.5)
    (line,) = [json.loads(line) for line in run.nodes.read_text().splitlines()]
    assert [(node["node"], node["judged"]) for node in line["worst"]] == [("n", 5)]


def test_without_a_cluster_there_is_no_file_of_nodes(tmp_path: Path) -> None:
    run = RunDir.create(str(tmp_path / "run"), {})
    recorder = Recorder(run, Progress(Console(StringIO()), 1), LoopLag(), lambda prompt: "")
    asyncio.run(recorder.step(result(1, 110.0)))
    recorder.close()
    run.close()
    assert not run.nodes.exists()
    assert "nodes/" not in run.metrics.read_text()
