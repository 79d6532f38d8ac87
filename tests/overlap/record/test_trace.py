"""The trace is Chrome trace JSON that Perfetto draws right: valid at any moment, no two spans of a row overlap."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pytest
from finished_steps import group, result, scored

from overlap.core import StepReport
from overlap.record.trace import Tracer

REQUIRED = {"X": {"name", "cat", "ts", "dur", "pid", "tid", "args"}, "M": {"name", "pid", "tid", "args"}}


def load(path: Path) -> list[dict[str, Any]]:
    """The events of a trace, checked against the format."""
    text = path.read_text()
    events = json.loads(text if text.endswith("]\n") else text + "]")
    assert isinstance(events, list)
    for event in events:
        assert event.keys() >= REQUIRED[event["ph"]]
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert event.get("dur", 0) >= 0
    return events


def drawn(path: Path) -> list[dict[str, Any]]:
    return [event for event in load(path) if event["ph"] == "X"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.json"


@pytest.fixture
def tracer(path: Path) -> Tracer:
    return Tracer(path, origin_s=0.0)


@pytest.mark.parametrize("shuffled", [False, True])
def test_spans_of_a_row_never_overlap_and_rows_are_as_few_as_spans_at_once(path, tracer, shuffled):
    rng = random.Random(0)
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


def test_a_killed_run_leaves_a_trace_that_lacks_nothing_but_the_bracket(path, tracer):
    for k in range(3):
        tracer.span("learn", k, k + 1, f"step {k}")
        tracer.flush()
        assert [e["name"] for e in drawn(path)] == [f"step {j}" for j in range(k + 1)]
    for _ in range(2):
        tracer.close()
    assert len(json.loads(path.read_text())) == 3 + 4  # with the names of the lane and its row


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


def test_a_judgement_of_another_machine_is_drawn_as_it_ran_there_with_its_node(path, tracer):
    node = "10.0.0.2-9c41d0aa"
    away = scored(0, 0, says="AC", node=node, ended=2.0, verify=2.5, verdict=4.25, run_s=1.5)
    tracer.step(result(group(0, away)))
    tracer.close()
    (shown,) = [event for event in drawn(path) if event["cat"] == "verify"]
    assert (shown["ts"], shown["dur"]) == (2.5e6, 1.5e6)
    assert shown["args"]["node"] == node
