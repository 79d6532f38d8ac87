"""A tracker in a process of its own: it may print, die, hang or be refused, and leaves no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from places import ROOT, SUPPORT
from tracker_stubs import calls

from overlap.process import process_tree
from overlap.process.process_tree import identify
from overlap.trackers.child_tracker import ChildTracker
from overlap.trackers.feed import TrackerGone
from overlap.trackers.tracker import TrackedRun, TrackerFault, TrackerRefused

Start = Callable[..., ChildTracker]


def tracked(folder: Path, **does: str) -> TrackedRun:
    return TrackedRun("0123456789abcdef", "run", "project", str(folder), str(folder / "trackers"), {"does": does})


def scratch(folder: Path) -> Path:
    """Where temporary files of the tracker lie."""
    (folder / "scratch").mkdir(exist_ok=True)
    return folder / "scratch"


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    monkeypatch.setenv("PYTHONPATH", str(SUPPORT))
    made: list[ChildTracker] = []

    def start(path: str = "tracker_stubs:FileTracker", **does: str) -> ChildTracker:
        made.append(ChildTracker(path, tmp_path / "run.log", scratch(tmp_path)))
        made[-1].start(tracked(tmp_path, **does))
        return made[-1]

    yield start
    for each in made:
        each.kill()


def gone(tracker: ChildTracker) -> bool:
    assert tracker._child is not None
    return tracker._child.poll() is not None


def test_calls_arrive_there_and_what_packages_print_goes_to_the_log(start: Start, tmp_path: Path) -> None:
    tracker = start(row="print")
    tracker.row({"step": 1, "reward/mean": 0.1})
    tracker.samples("train", 1, [{"answer": "déjà\n"}])
    tracker.rewind(0)
    tracker.end("finished", {"before/value": 0.5})
    pid = calls(tmp_path)[0][-1]
    assert pid != os.getpid()
    assert calls(tmp_path) == [
        ["start", "0123456789abcdef", 0, False, pid],
        ["row", {"step": 1, "reward/mean": 0.1}],
        ["samples", "train", 1, [{"answer": "déjà\n"}]],
        ["rewind", 0],
        ["end", "finished", {"before/value": 0.5}],
    ]
    assert {"chatter of a package", "more of it"} <= set((tmp_path / "run.log").read_text().splitlines())
    tracker.kill()
    tracker.kill()
    assert gone(tracker)


def test_what_packages_leave_for_a_while_lies_in_the_scratch_directory_of_the_run(start: Start, tmp_path: Path) -> None:
    start(row="leave").row({"step": 1})
    assert [path.name for path in scratch(tmp_path).iterdir()] == ["left-behind"]


@pytest.mark.parametrize(
    ("how", "says"), [("refuse", "no login here"), ("import", "ModuleNotFoundError: No module named 'no_such_package'")]
)
def test_one_that_is_refused_says_so_and_is_gone(start: Start, tmp_path: Path, how: str, says: str) -> None:
    tracker = ChildTracker("tracker_stubs:FileTracker", tmp_path / "run.log", scratch(tmp_path))
    with pytest.raises(TrackerRefused, match=says):
        tracker.start(tracked(tmp_path, start=how))
    assert gone(tracker)


def test_an_error_costs_its_call_alone(start: Start, tmp_path: Path) -> None:
    tracker = start(row="raise")
    with pytest.raises(TrackerFault, match="ConnectionError: the network is down"):
        tracker.row({"step": 1})
    tracker.rewind(0)
    assert calls(tmp_path)[-1] == ["rewind", 0]


@pytest.mark.parametrize(
    ("how", "why"), [("die", r"its process has ended \(3\), see run.log"), ("hang", "not answered")]
)
def test_one_that_dies_or_hangs_is_gone(start: Start, how: str, why: str) -> None:
    tracker = start(row=how)
    with pytest.raises(TrackerGone, match=why):
        tracker._call("row", {"step": 1}, wait_s=0.2 if how == "hang" else 60.0)
    assert gone(tracker)


DRIVER = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from overlap.trackers.tracker import TrackedRun
from overlap.trackers.child_tracker import ChildTracker
folder = Path(sys.argv[1])
tracker = ChildTracker("tracker_stubs:FileTracker", folder / "run.log", folder)
tracker.start(TrackedRun("id", "run", "project", str(folder), str(folder), {}))
tracker.row({"step": 1})
print(tracker._child.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_tracker_of_a_killed_run_is_told_and_leaves_no_process(tmp_path: Path) -> None:
    here: dict[str, Any] = {**os.environ, "PYTHONPATH": f"{ROOT}:{SUPPORT}"}
    words = [sys.executable, "-c", DRIVER, str(tmp_path), str(SUPPORT)]
    done = subprocess.run(words, env=here, stdout=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == -signal.SIGKILL
    child = identify(int(done.stdout))
    assert child is None or process_tree.await_end([child], 60.0) == []
    assert calls(tmp_path)[-1] == ["end", "error: the process of the run was lost", {}]
