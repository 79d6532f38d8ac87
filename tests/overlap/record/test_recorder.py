"""What the recorder makes of a finished step."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from finished_steps import result

from overlap.core import ClusterFigures, NodeFigures, Prompt, Request, Scored, Trajectory
from overlap.pipeline.learning import StepResult
from overlap.record import recorder as module
from overlap.record import traffic as traffic_module
from overlap.record.json_lines import read_json_lines
from overlap.record.logs import Console
from overlap.record.progress import Progress
from overlap.record.recorder import Recorder
from overlap.record.rundir import RunDir
from overlap.record.sample_writer import SampleWriter
from overlap.record.traffic import Span, Traffic


def ended(step: int, at_s: float) -> StepResult:
    return result(step=step, **dict.fromkeys(("learn_span", "sync_span", "parity_span"), (at_s, at_s)))


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunDir]:
    made = RunDir.create(str(tmp_path / "run"), {})
    yield made
    made.close()


@pytest.fixture
def recorder(run: RunDir) -> Recorder:
    return Recorder(
        run,
        Progress(Console(StringIO()), 3),
        SampleWriter(run, lambda prompt: "", lambda prompt, answer: None),
    )


def test_an_evaluation_between_two_steps_is_in_the_row_and_not_in_the_time_of_either(
    run: RunDir, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps follow each other without a gap but for that."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now))

    async def steps() -> None:
        recorder.begin()
        clock.now = 150.0  # an evaluation after step 1
        recorder.evaluated(112.0)
        await recorder.step(ended(1, 110.0), {"eval/pass_at_1": 0.5})
        await recorder.step(ended(2, 157.0))
        clock.now = 158.0  # the row of step 2 was written meanwhile, which is part of step 3
        await recorder.step(ended(3, 161.0))

    asyncio.run(steps())
    recorder.close()
    rows = read_json_lines(run.metrics)
    assert [row["time/step_s"] for row in rows] == [10.0, 7.0, 4.0]
    spans = [event for event in json.loads(run.trace.read_text()) if event["ph"] == "X"]
    assert [(s["name"], s["dur"]) for s in spans if s["cat"] == "evaluate"] == [("after step 1", 38e6)]
    assert [row.get("eval/pass_at_1") for row in rows] == [0.5, None, None]


class OverNodes:
    """A verifier whose nodes have done what ``figures`` say."""

    def __init__(self, *figures: ClusterFigures) -> None:
        self._figures = list(figures)

    async def score(self, trajectory: object) -> None: ...

    def take_nodes(self) -> ClusterFigures:
        return self._figures.pop(0)


def test_what_nodes_did_in_a_step_is_in_its_row_and_names_them_in_a_file(run: RunDir, recorder: Recorder) -> None:
    asyncio.run(recorder.step(ended(1, 110.0)))
    assert not run.nodes.exists()  # there is no cluster yet
    assert "nodes/" not in run.metrics.read_text()
    before, step = (ClusterFigures(10.0, (NodeFigures("n", 2, "A", judged=j, run_s=10.0),)) for j in (77, 5))
    recorder.traffic.verifier(OverNodes(before, step))  # type: ignore[arg-type]
    recorder.begin()
    asyncio.run(recorder.step(ended(2, 110.0)))
    recorder.close()
    (_, row) = read_json_lines(run.metrics)
    assert (row["nodes/judged"], row["nodes/busy_share"]) == (5, 0.5)
    (line,) = read_json_lines(run.nodes)
    assert [(node["node"], node["judged"]) for node in line["worst"]] == [("n", 5)]


class _Inner:
    def __init__(self) -> None:
        self.gate = asyncio.Event()

    async def generate(self, request: Request) -> Trajectory:
        await self.gate.wait()
        return Trajectory(request, (7,) * 4, (-0.1,) * 4, "x", "stop", (), 0.0, 1.0)

    async def score(self, trajectory: Trajectory) -> Scored:
        raise RuntimeError("verifier failed")

    async def sleep(self) -> None: ...

    async def wake(self, part: str) -> None: ...

    def pids(self) -> tuple[int, ...]:
        return (1, 2)


async def _run(move_to: Callable[[float], None], seen: list[str]) -> list[Span]:
    """Two requests that overlap, a sleep and a wake while they wait, a failed verdict, a request open at the end."""
    inner: Any = _Inner()
    traffic = Traffic(seen.append)
    generator: Any = traffic.generator(inner)

    def ask() -> asyncio.Task[Trajectory]:
        return asyncio.create_task(generator.generate(Request(0, 0, Prompt("p", (1, 2)))))

    first = ask()
    await asyncio.sleep(0)
    for at, change in ((2, generator.sleep()), (3, generator.wake("weights")), (5, generator.wake("cache"))):
        move_to(at)
        await change
    second = ask()
    await asyncio.sleep(0)
    assert (traffic.generating, generator.pids()) == (2, (1, 2))
    move_to(6)
    inner.gate.set()
    await asyncio.gather(first, second)
    with pytest.raises(RuntimeError, match="verifier failed"):
        await traffic.verifier(inner).score(first.result())
    assert (traffic.generating, traffic.verifying) == (0, 0)
    inner.gate.clear()
    move_to(8)
    third = ask()
    await asyncio.sleep(0)
    move_to(9)
    spans = traffic.pop_engine_spans()
    move_to(10)
    inner.gate.set()
    await third
    return [*spans, *traffic.pop_engine_spans(), *traffic.pop_engine_spans()]


def test_an_engine_is_busy_while_it_has_requests_and_its_cache_is_awake(monkeypatch):
    at, seen = [1.0], []
    monkeypatch.setattr(traffic_module, "time", SimpleNamespace(monotonic=lambda: at[0]))
    spans = asyncio.run(asyncio.wait_for(_run(lambda moment: at.__setitem__(0, moment), seen), 20))
    assert spans == [(1, 2), (5, 6), (8, 9), (9, 10)]
    assert seen[:2] == ["1 generating, 0 verifying", "0 generating, 0 verifying"]
