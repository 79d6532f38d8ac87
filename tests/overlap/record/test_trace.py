"""The trace is Chrome trace JSON that Perfetto draws right: valid at any moment, no two spans of a row overlap."""

from __future__ import annotations

import json
import os
import random
from collections import defaultdict
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pytest
from finished_steps import group, result, scored

from overlap.core import ClusterFigures, NodeFigures, StepReport
from overlap.errors import RunDirError
from overlap.record import trace
from overlap.record.trace import STAGES, Tracer

REQUIRED = {
    "X": {"name", "cat", "ts", "dur", "pid", "tid", "args"},
    "M": {"name", "pid", "tid", "args"},
}


def load(path: Path) -> list[dict[str, Any]]:
    """The events of a trace, checked against the format."""
    events = json.loads(path.read_text())
    assert isinstance(events, list)
    for event in events:
        assert event.keys() >= REQUIRED[event["ph"]]
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert event.get("dur", 0) >= 0
    return events


def drawn(path: Path) -> list[dict[str, Any]]:
    return [event for event in load(path) if event["ph"] == "X"]


def named(path: Path, what: str) -> dict[tuple[int, int], str]:
    return {(e["pid"], e["tid"]): e["args"]["name"] for e in load(path) if e["name"] == what}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.json"


@pytest.fixture
def tracer(path: Path) -> Tracer:
    return Tracer(path, origin_s=0.0)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("shuffled", [False, True])
def test_spans_of_a_row_never_overlap_and_rows_are_as_few_as_spans_at_once(path, tracer, seed, shuffled, monkeypatch):
    monkeypatch.setattr(trace, "FLUSH_EVERY", 7)
    rng = random.Random(seed)
    starts = [rng.uniform(0, 20) for _ in range(200)]
    spans = sorted(((s, s + rng.expovariate(1)) for s in starts), key=lambda span: span[1])
    for start, end in rng.sample(spans, 200) if shuffled else spans:
        tracer.span("generate", start, end, "s")
    tracer.close()
    rows = defaultdict(list)
    for e in drawn(path):
        rows[e["pid"], e["tid"]].append((e["ts"], e["ts"] + e["dur"]))
    assert sum(map(len, rows.values())) == 200
    for row in rows.values():
        assert all(second[0] >= first[1] - 1e-3 for first, second in pairwise(sorted(row)))
    edges = sorted([(s, 1) for s, _ in spans] + [(e, -1) for _, e in spans])
    if not shuffled:
        assert len(rows) == max(accumulate(change for _, change in edges))


def test_lanes_are_named_and_in_the_order_of_the_stages(path):
    tracer = Tracer(path, origin_s=10.0)
    for stage in reversed(STAGES):
        tracer.span(stage, 11.0, 12.5, 'a "quoted" \n name', note="\x00 é", value=float("nan"))
    tracer.close()
    order = {e["pid"]: e["args"]["sort_index"] for e in load(path) if e["name"] == "process_sort_index"}
    names = {pid: name for (pid, _), name in named(path, "process_name").items()}
    assert [names[pid] for pid in sorted(names, key=order.__getitem__)] == [*STAGES]
    threads, work = named(path, "thread_name"), drawn(path)
    assert {(e["ts"], e["dur"]) for e in work} == {(1e6, 1.5e6)}
    assert all(threads[e["pid"], e["tid"]] == names[e["pid"]] for e in work)
    assert (work[0]["name"], work[0]["args"]) == ('a "quoted" \n name', {"note": "\x00 é", "value": None})
    assert len({e["tid"] for e in work}) == len(work)  # unique in the file: Perfetto keys threads by tid


def test_the_file_is_whole_at_any_moment_so_that_a_killed_run_leaves_a_trace_that_loads(path, tracer, monkeypatch):
    monkeypatch.setattr(trace, "FLUSH_EVERY", 4)
    tracer.open()
    assert load(path) == []
    for k in range(100):
        tracer.span("learn", k, k + 1, f"step {k}")
        assert len(tracer._pending) < 4  # memory is bounded
        shown = [e["name"] for e in drawn(path)]
        assert shown == [f"step {j}" for j in range(len(shown))]
        assert len(shown) > k - 4
    tracer.close()
    tracer.close()
    assert len(drawn(path)) == 100


def test_a_full_disk_is_one_clear_error_and_what_was_written_stays_loadable(path, tracer, monkeypatch):
    tracer.span("learn", 0, 1, "first")
    tracer.flush()
    real, left = os.pwrite, [20]

    def nearly_full(fd: int, data: bytes, at: int) -> int:
        if not left:
            return real(fd, data, at)  # putting the bracket back takes no new space
        if left[0] == 0:
            left.clear()
            raise OSError(28, "No space left on device")
        written = real(fd, data[: left[0]], at)
        left[0] = 0
        return written

    tracer.span("learn", 1, 2, "second")
    monkeypatch.setattr(os, "pwrite", nearly_full)
    with pytest.raises(RunDirError, match=r"trace\.json: No space left on device"):
        tracer.flush()
    monkeypatch.undo()
    tracer.span("verify", 2, 3, "third")
    tracer.close()
    assert [e["name"] for e in drawn(path)] == ["first", "third"]
    assert set(named(path, "thread_name").values()) == {"learn", "verify"}


def test_a_file_that_cannot_be_made_is_made_later_and_its_rows_keep_their_names(tmp_path):
    (runs := tmp_path / "runs").touch()
    tracer = Tracer(runs / "trace.json", origin_s=0.0)
    tracer.span("learn", 0, 1, "lost")
    with pytest.raises(RunDirError, match=r"trace\.json"):
        tracer.flush()
    runs.unlink()
    runs.mkdir()
    tracer.span("learn", 1, 2, "kept")
    tracer.close()
    assert [e["name"] for e in drawn(runs / "trace.json")] == ["kept"]
    assert set(named(runs / "trace.json", "process_name").values()) == {"learn"}


def test_a_resumed_run_has_one_trace_whose_time_goes_on(path):
    first = Tracer(path, origin_s=100.0)
    first.span("learn", 101.0, 102.0, "step 1")
    first.flush()
    position = first.position
    first.span("learn", 103.0, 104.0, "step 2, after the checkpoint")
    first.close()
    second = Tracer(path, origin_s=5000.0, after=position)
    second.span("generate", 4998.0, 4999.0, "began before the run was cut: its row is taken")
    second.span("learn", 5001.0, 5003.0, "step 2")
    second.close()
    assert [(e["name"], e["ts"], e["dur"]) for e in drawn(path)] == [("step 1", 1e6, 1e6), ("step 2", 3e6, 2e6)]


def test_a_trace_that_is_shorter_than_it_was_is_begun_anew(path):
    path.write_text("[\n]\n")
    tracer = Tracer(path, origin_s=0.0, after=(5000, 3.0))
    tracer.span("learn", 1, 2, "step 9")
    tracer.close()
    assert [e["ts"] for e in drawn(path)] == [1e6]


def test_a_finished_step_is_drawn_in_all_of_its_lanes(path, tracer):
    times = {"started": 1.0, "ended": 2.0, "verify": 2.5, "verdict": 3.0}
    samples = scored(0, 0, 0.0, **times), scored(0, 1, 1.0, started=1.0, ended=3.0, verify=3.5, verdict=5.0)
    spans = {"learn_span": (5.0, 7.0), "sync_span": (7.0, 7.5), "parity_span": (7.5, 8.0)}
    tracer.step(result(group(0, *samples), step=1, report=StepReport(1, 1, 2.0), **spans))
    tracer.close()
    assert {(e["cat"], e["name"], e["ts"] / 1e6, e["dur"] / 1e6) for e in drawn(path)} == {
        ("generate", "g0s0", 1.0, 1.0),
        ("generate", "g0s1", 1.0, 2.0),
        ("verify", "g0s0", 2.5, 0.5),
        ("verify", "g0s1", 3.5, 1.5),
        ("collect", "group 0", 3.0, 2.0),
        ("learn", "step 1", 5.0, 2.0),
        ("load", "version 1", 7.0, 0.5),
        ("load", "parity of version 1", 7.5, 0.5),
    }


def test_a_judgement_of_another_machine_is_drawn_as_it_ran_there_with_its_node_and_the_error_of_its_clock(path, tracer):
    node = "10.0.0.2-9c41d0aa"
    away = scored(0, 0, says="AC", node=node, ended=2.0, verify=2.5, verdict=4.25, run_s=1.5)
    tracer.step(result(group(0, away)), ClusterFigures(1.0, (NodeFigures(node, 4, "A", error_s=0.003),)))
    tracer.close()
    (shown,) = [event for event in drawn(path) if event["cat"] == "verify"]
    assert (shown["ts"], shown["dur"]) == (2.5e6, 1.5e6)
    told = {name: shown["args"][name] for name in ("node", "queue_s", "back_s", "clock_error_s")}
    assert told == {"node": node, "queue_s": 0.5, "back_s": 0.25, "clock_error_s": 0.003}
