"""The books of a run that was broken off: what its history must be, and what may not be left.

lost, twice      prompts that no step of the final history took, or more than one
differ           steps that were learned, those rewound included, otherwise than by the unbroken run
rows             steps whose row in metrics.jsonl is missing or double, samples or groups twice, groups that were
                 learned and have no line, spans of the trace that overlap
left             processes, scratch directories, shared memory and hidden files that are there when the run has ended
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

from overlap.record.metrics import read_steps

LEFT_S = 15.0  # for the reaper of a killed run to clear up
Entry = dict[str, Any]
"""A step that was learned: ``step``, ``version`` before it, ``groups`` and ``prompts`` in order, and what else there is
to compare."""


def check(
    directory: Path, steps: int, taken: Sequence[Entry], expected: Mapping[int, Entry], left: Iterable[object]
) -> dict[str, int]:
    """The books of the run in ``directory``, which has ended after ``steps``.

    ``taken`` are the steps in the order in which they were learned, rewound ones too where they are known; ``expected``
    those of the unbroken run by number; ``left`` is what was found of it beside its directory.
    """
    history = {entry["step"]: entry for entry in taken}
    groups = Counter(group for entry in history.values() for group in entry["groups"])
    consumed = {group for entry in expected.values() for group in entry["groups"]}
    return {
        "lost": len(consumed - groups.keys()),
        "twice": sum(count - 1 for count in groups.values()) + len(groups.keys() - consumed),
        "differ": sum(entry != expected.get(entry["step"]) for entry in taken)
        + sum(entry["version"] != step - 1 for step, entry in history.items()),
        "rows": _wrong_rows(directory, steps, len(expected)) + _wrong_groups(directory, history),
        "left": _told([*left, *_hidden(directory)]),
    }


def rows_of(path: Path) -> list[dict[str, Any]]:
    """Lines of JSON."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def _wrong_rows(directory: Path, steps: int, learned_steps: int) -> int:
    counted = Counter(row["step"] for row in read_steps(directory / "metrics.jsonl"))
    samples = Counter((row["step"], row["id"]) for row in rows_of(directory / "trajectories.jsonl"))
    spans = json.loads((directory / "trace.json").read_text())
    learned = [span for span in spans if span.get("cat") == "learn"]
    late = sum(a["ts"] + a["dur"] > b["ts"] for a, b in pairwise(learned))
    wrong = sum(counted[step] != 1 for step in range(1, steps + 1)) + len(counted.keys() - set(range(1, steps + 1)))
    return wrong + sum(count > 1 for count in samples.values()) + late + abs(len(learned) - learned_steps)


def _wrong_groups(directory: Path, history: Mapping[int, Entry]) -> int:
    lines = Counter((row["split"], row["step"], row["group"]) for row in rows_of(directory / "groups.jsonl"))
    learned = {("train", step, group) for step, entry in history.items() for group in entry["groups"]}
    return sum(count > 1 for count in lines.values()) + len(learned - lines.keys())


def _hidden(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.name.startswith(".") or path.is_socket()]


def _told(left: Sequence[object]) -> int:
    for thing in left:
        print(f"left: {thing}", file=sys.stderr)
    return len(left)


def left_in(scratch: Path) -> list[object]:
    """Everything in the scratch directory of a run that has ended, after a while, and processes that work there."""
    until = time.monotonic() + LEFT_S
    while (found := [*scratch.iterdir(), *_processes(scratch)]) and time.monotonic() < until:
        time.sleep(0.1)
    return found


def _processes(scratch: Path) -> list[psutil.Process]:
    """Those that have the directory, or one in it, for their temporary files."""

    def ours(process: psutil.Process) -> bool:
        try:
            place = Path(process.environ().get("TMPDIR", "/"))
        except (psutil.Error, OSError):
            return False
        return place == scratch or scratch in place.parents

    return [process for process in psutil.process_iter() if ours(process)]
