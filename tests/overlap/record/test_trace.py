"""The trace is Chrome trace JSON that Perfetto draws right: valid at any moment, no two spans of a row overlap."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import textwrap
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from places import ROOT

from overlap.core import Batch, Group, Prompt, Request, Scored, StepReport, Trajectory, VersionSpan
from overlap.errors import RunDirError
from overlap.pipeline import StepResult
from overlap.record.trace import STAGES, Tracer
from overlap.verify import ClusterFigures, NodeFigures
from sandbox.core import Judgement, Verdict

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
        if event["ph"] == "X":
            assert event["dur"] >= 0
    return events


def rows(events: list[dict[str, Any]]) -> dict[tuple[int, int], list[tuple[float, float]]]:
    found = defaultdict(list)
    for e in events:
        if e["ph"] == "X":
            found[e["pid"], e["tid"]].append((e["ts"], e["ts"] + e["dur"]))
    return {key: sorted(spans) for key, spans in found.items()}


def named(events: list[dict[str, Any]], what: str) -> dict[tuple[int, int], str]:
    return {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == what}


def random_spans(seed: int, count: int) -> list[tuple[float, float]]:
    rng = random.Random(seed)
    starts = [rng.uniform(0, 20) for _ in range(count)]
    return sorted(((s, s + rng.expovariate(1)) for s in starts), key=lambda span: span[1])


@pytest.mark.parametrize("seed", range(2))
def test_spans_of_a_row_never_overlap_and_rows_are_as_few_as_spans_at_once(tmp_path, seed):
    spans = random_spans(seed, 200)
    tracer = Tracer(tmp_path / "trace.json", origin_s=0.0, flush_every=7)
    for k, (start, end) in enumerate(spans):
        tracer.span("generate", start, end, f"s{k}")
    tracer.close()
    shuffled = Tracer(tmp_path / "shuffled.json", origin_s=0.0)
    for start, end in random.Random(seed).sample(spans, len(spans)):
        shuffled.span("generate", start, end, "s")
    shuffled.close()
    packed = rows(load(tmp_path / "trace.json"))
    for row in (*packed.values(), *rows(load(tmp_path / "shuffled.json")).values()):
        assert all(second[0] >= first[1] - 1e-3 for first, second in pairwise(row))
    edges = sorted([(s, 1) for s, _ in spans] + [(e, -1) for _, e in spans])
    at_once = deepest = 0
    for _, change in edges:
        at_once += change
        deepest = max(deepest, at_once)
    assert len(packed) == deepest
    assert sum(map(len, packed.values())) == 200


def test_lanes_are_named_and_in_the_order_of_the_stages(tmp_path):
    tracer = Tracer(tmp_path / "trace.json", origin_s=10.0)
    for stage in ("evaluate", *reversed(STAGES)):
        tracer.span(stage, 11.0, 12.5, "work", note="why")
    tracer.close()
    events = load(tmp_path / "trace.json")
    order = {e["pid"]: e["args"]["sort_index"] for e in events if e["name"] == "process_sort_index"}
    names = {pid: name for (pid, _), name in named(events, "process_name").items()}
    assert [names[pid] for pid in sorted(names, key=order.__getitem__)] == [*STAGES, "evaluate"]
    threads = named(events, "thread_name")
    work = [e for e in events if e["ph"] == "X"]
    assert {(e["ts"], e["dur"]) for e in work} == {(1e6, 1.5e6)}
    assert all(threads[e["pid"], e["tid"]] == names[e["pid"]] for e in work)
    assert work[0]["args"] == {"note": "why"}
    assert len({e["tid"] for e in work}) == len(work)  # unique in the file: Perfetto keys threads by tid


def test_a_trace_is_valid_json_from_the_first_moment_on(tmp_path):
    path = tmp_path / "trace.json"
    tracer = Tracer(path, origin_s=0.0, flush_every=1)
    tracer.open()
    assert load(path) == []
    for k in range(5):
        tracer.span("learn", k, k + 1, f"step {k}")
        assert [e["name"] for e in load(path) if e["ph"] == "X"] == [f"step {j}" for j in range(k + 1)]
    tracer.close()
    tracer.close()


def test_memory_is_bounded_by_the_flush(tmp_path):
    tracer = Tracer(tmp_path / "trace.json", flush_every=10)
    for k in range(1000):
        tracer.span("generate", k, k + 1, "s")
        assert len(tracer._pending) < 10
    tracer.close()


def test_a_killed_run_leaves_a_trace_that_loads(tmp_path):
    path = tmp_path / "trace.json"
    code = textwrap.dedent(f"""
        import os, signal
        from pathlib import Path
        from overlap.record.trace import Tracer
        tracer = Tracer(Path({str(path)!r}), origin_s=0.0, flush_every=4)
        for k in range(103):
            tracer.span("generate", k, k + 0.5, f"s{{k}}")
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    root = ROOT
    done = subprocess.run([sys.executable, "-c", code], cwd=root, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    spans = [e for e in load(path) if e["ph"] == "X"]
    assert len(spans) >= 95


def test_text_that_json_must_escape_stays_text(tmp_path):
    tracer = Tracer(tmp_path / "trace.json", origin_s=0.0)
    tracer.span("verify", 0, 1, 'a "quoted" \n name', why="\x00 é", value=float("nan"))
    tracer.close()
    event = next(e for e in load(tmp_path / "trace.json") if e["ph"] == "X")
    assert event["name"] == 'a "quoted" \n name'
    assert event["args"] == {"why": "\x00 é", "value": None}


def test_a_full_disk_is_one_clear_error_and_what_was_written_stays_loadable(tmp_path, monkeypatch):
    path = tmp_path / "trace.json"
    tracer = Tracer(path, origin_s=0.0)
    tracer.span("learn", 0, 1, "first")
    tracer.flush()
    import os

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
    events = load(path)
    assert [e["name"] for e in events if e["ph"] == "X"] == ["first", "third"]
    assert set(named(events, "thread_name").values()) == {"learn", "verify"}


def test_a_file_that_cannot_be_made_is_made_later_and_its_rows_keep_their_names(tmp_path):
    (tmp_path / "runs").touch()
    tracer = Tracer(tmp_path / "runs" / "trace.json", origin_s=0.0)
    tracer.span("learn", 0, 1, "lost")
    with pytest.raises(RunDirError, match=r"trace\.json"):
        tracer.flush()
    (tmp_path / "runs").unlink()
    (tmp_path / "runs").mkdir()
    tracer.span("learn", 1, 2, "kept")
    tracer.close()
    events = load(tmp_path / "runs" / "trace.json")
    assert [e["name"] for e in events if e["ph"] == "X"] == ["kept"]
    assert set(named(events, "process_name").values()) == {"learn"}


def test_a_resumed_run_has_one_trace_whose_time_goes_on(tmp_path):
    path = tmp_path / "trace.json"
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
    work = [(e["name"], e["ts"], e["dur"]) for e in load(path) if e["ph"] == "X"]
    assert work == [("step 1", 1e6, 1e6), ("step 2", 3e6, 2e6)]


def test_a_trace_that_is_shorter_than_it_was_is_begun_anew(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text("[\n]\n")
    tracer = Tracer(path, origin_s=0.0, after=(5000, 3.0))
    tracer.span("learn", 1, 2, "step 9")
    tracer.close()
    assert [e["ts"] for e in load(path) if e["ph"] == "X"] == [1e6]


def test_a_finished_step_is_drawn_in_all_of_its_lanes(tmp_path):
    prompt = Prompt("p", (1,))

    def sample(k: int, verdict_s: float) -> Scored:
        spans = (VersionSpan(0, 0, 2),)
        trajectory = Trajectory(Request(0, k, prompt), (1, 2), (-1.0, -1.0), "t", "stop", spans, 1.0, 2.0 + k)
        return Scored(trajectory, float(k), None, "", 2.0 + k, 2.5 + k, verdict_s)

    samples = (sample(0, 3.0), sample(1, 5.0))
    batch = Batch(1, 0, (Group(0, prompt, samples, (-1.0, 1.0)),))
    result = StepResult(batch, StepReport(1, 1, 2.0), (5.0, 7.0), (7.0, 7.5), (7.5, 8.0), 0.001)
    tracer = Tracer(tmp_path / "trace.json", origin_s=0.0)
    tracer.step(result)
    tracer.close()
    drawn = {(e["cat"], e["name"], e["ts"] / 1e6, e["dur"] / 1e6) for e in load(tmp_path / "trace.json") if "dur" in e}
    assert drawn == {
        ("generate", "g0s0", 1.0, 1.0),
        ("generate", "g0s1", 1.0, 2.0),
        ("verify", "g0s0", 2.5, 0.5),
        ("verify", "g0s1", 3.5, 1.5),
        ("collect", "group 0", 3.0, 2.0),
        ("learn", "step 1", 5.0, 2.0),
        ("load", "version 1", 7.0, 0.5),
        ("load", "parity of version 1", 7.5, 0.5),
    }


def test_a_judgement_of_another_machine_is_drawn_as_it_ran_there_with_its_node_and_the_error_of_its_clock(tmp_path):
    prompt = Prompt("p", (1,))
    trajectory = Trajectory(Request(0, 0, prompt), (1,), (-1.0,), "t", "stop", (VersionSpan(0, 0, 1),), 1.0, 2.0)
    judgement = Judgement("p", Verdict.AC, (), 1, 1, False, "A", "python", "3", "", 0.5, 1.5, node="10.0.0.2-9c41d0aa")
    scored = Scored(trajectory, 1.0, judgement, "", 2.0, 2.5, 4.25)
    batch = Batch(1, 0, (Group(0, prompt, (scored,), (0.0,)),))
    nodes = ClusterFigures(1.0, (NodeFigures("10.0.0.2-9c41d0aa", 4, "A", error_s=0.003),))
    tracer = Tracer(tmp_path / "trace.json", origin_s=0.0)
    tracer.step(StepResult(batch, None, (5.0, 5.0), (5.0, 5.0), (5.0, 5.0), 0.0), nodes)
    tracer.close()
    (drawn,) = [event for event in load(tmp_path / "trace.json") if event.get("cat") == "verify"]
    assert (drawn["ts"], drawn["dur"]) == (2.5e6, 1.5e6)
    told = {name: drawn["args"][name] for name in ("node", "queue_s", "back_s", "clock_error_s")}
    assert told == {"node": "10.0.0.2-9c41d0aa", "queue_s": 0.5, "back_s": 0.25, "clock_error_s": 0.003}
