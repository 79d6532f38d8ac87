"""One step as a timeline: when its samples were generated, verified and learned from, by ``trace.json``.

A step's events are together in the file, so only the part around one step is read, however long the run was.
"""

from __future__ import annotations

import json
import math
import mmap
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from overlap.inspect.run_data import RunData
from overlap.record.run_files import RunFile

BYTES = 6 * 2**20
"""Bytes of the trace that are read at most."""
LANES = (
    ("generate", 0), ("verify", 1), ("collect", 7), ("learn", 4), ("publish", 2), ("load", 2), ("evaluate", 6)
)  # fmt: skip
"""Stages and their colours."""
ROWS = 80
"""Rows of a lane that are drawn."""
_LEARNED = re.compile(rb'"name": "step (\d+)", "cat": "learn"')


class _Span(NamedTuple):
    stage: str
    name: str
    row: int
    start: float
    end: float
    """s"""


def timeline(run: RunData) -> dict[str, Any] | None:
    """A step of median length among the steps of the trace: its number, its length in s, and by lane the bars of its
    spans: row, begin and end in s. None without such a step.
    """
    try:
        found = _one_step(run)
    except (OSError, ValueError, KeyError, TypeError):  # a trace is a by-product: a broken one costs this section
        return None
    if found is None:
        return None
    step, length, spans = found
    learned = next((s for s in spans if s.stage == "learn" and s.name == f"step {step}"), None)
    if learned is None:
        return None
    loads = (s.end for s in spans if s.stage == "load" and 0 <= s.start - learned.end < 0.5 * length)
    end = max(loads, default=learned.end)
    begin = end - length
    inside = [s for s in spans if s.end > begin and s.start < end]
    lanes = [(stage, colour, _bars([s for s in inside if s.stage == stage], begin, end)) for stage, colour in LANES]
    return {"step": step, "length": length, "lanes": [lane for lane in lanes if lane[2]]}


def _bars(spans: list[_Span], begin: float, end: float) -> list[tuple[int, float, float]]:
    order = sorted({s.row for s in spans}, key=lambda row: min(s.start for s in spans if s.row == row))
    rows = {row: at % ROWS for at, row in enumerate(order)}
    return [(rows[s.row], round(max(s.start, begin) - begin, 4), round(min(s.end, end) - begin, 4)) for s in spans]


def _one_step(run: RunData) -> tuple[int, float, list[_Span]] | None:
    """A step, its length in s, and the spans that were written from the step before it to the one after."""
    with RunFile.TRACE.of(run.path).open("rb") as file:
        if not (size := file.seek(0, 2)):
            return None
        with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as data:
            places = {int(found[1]): found.start() for found in _LEARNED.finditer(data)}
            lengths = {int(row["step"]): float(row.get("time/step_s", math.nan)) for row in run.steps}
            known = sorted((lengths[step], step) for step in places if 0 < lengths.get(step, 0.0) < math.inf)
            if not known:
                return None
            length, step = known[len(known) // 2]
            first, last = places.get(step - 1, 0), places.get(step + 2, places.get(step + 1, size))
            # Half of the bytes that are read are before the step's own end, where its samples are.
            first, last = max(first, places[step] - BYTES // 2), min(last, places[step] + BYTES // 2)
            lines = data[data.rfind(b"\n", 0, first) + 1 : last].split(b"\n")
    return step, length, list(_spans(lines))


def _spans(lines: list[bytes]) -> Iterator[_Span]:
    stages = dict(LANES)
    for line in lines:
        if b'"ph": "X"' not in line or not line.rstrip(b",\r").endswith(b"}"):
            continue
        event: dict[str, Any] = json.loads(line.rstrip(b",\r"))
        if event.get("cat") in stages:
            start = event["ts"] / 1e6
            yield _Span(event["cat"], event["name"], event["tid"], start, start + event["dur"] / 1e6)
