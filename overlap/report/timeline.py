"""One step as a timeline: when its samples were generated, verified and learned from, by ``trace.json``.

A step's events stand together in the file, so only the part around one step is read, however long the run was.
"""

from __future__ import annotations

import json
import math
import mmap
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from overlap.analysis.run_data import RunData
from overlap.record.run_files import RunFile
from overlap.report.charts import round_numbers
from overlap.report.page import esc, section

BYTES = 6 * 2**20
"""Of the trace that is read."""
LANES = {"generate": 0, "verify": 1, "collect": 7, "learn": 4, "publish": 2, "load": 2, "evaluate": 6}
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


def timeline(run: RunData) -> str:
    """A step of median length, of those that the trace has."""
    try:
        found = _one_step(run)
    except (OSError, ValueError, KeyError, TypeError):  # a trace is a by-product: a broken one costs this section
        return ""
    if found is None:
        return ""
    step, length, spans = found
    learned = next((s for s in spans if s.stage == "learn" and s.name == f"step {step}"), None)
    if learned is None:
        return ""
    loads = (s.end for s in spans if s.stage == "load" and 0 <= s.start - learned.end < 0.5 * length)
    end = max(loads, default=learned.end)
    begin = end - length
    inside = [s for s in spans if s.end > begin and s.start < end]
    lanes = "".join(_lane(stage, [s for s in inside if s.stage == stage], begin, end) for stage in LANES)
    marks = [(at, f"{at:g} s") for at in round_numbers(0.0, length, 6) if at < 0.97 * length]
    ticks = "".join(f'<span style="left:{100 * at / length:.2f}%">{name}</span>' for at, name in marks)
    lead = f"Step {step}, {length:.3g} s, of median length. "
    lead += "A bar is a sample; of collect, a group until its last verdict. Perfetto shows the whole trace.json."
    body = f'<div class="lanes">{lanes}<span></span><div class="ticks at">{ticks}</div></div>'
    return section("timeline", "Timeline of a step", body, lead)


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
            # Half of what is read lies before the step's own end, where its samples are.
            first, last = max(first, places[step] - BYTES // 2), min(last, places[step] + BYTES // 2)
            lines = data[data.rfind(b"\n", 0, first) + 1 : last].split(b"\n")
    return step, length, list(_spans(lines))


def _spans(lines: list[bytes]) -> Iterator[_Span]:
    for line in lines:
        if b'"ph": "X"' not in line or not line.rstrip(b",\r").endswith(b"}"):
            continue
        event: dict[str, Any] = json.loads(line.rstrip(b",\r"))
        if event.get("cat") in LANES:
            start = event["ts"] / 1e6
            yield _Span(event["cat"], event["name"], event["tid"], start, start + event["dur"] / 1e6)


def _lane(stage: str, spans: list[_Span], begin: float, end: float) -> str:
    if not spans:
        return ""
    order = sorted({s.row for s in spans}, key=lambda row: min(s.start for s in spans if s.row == row))
    rows = {row: at % ROWS for at, row in enumerate(order)}
    thick = 3.0 if len(order) > 8 else 6.0 if len(order) > 1 else 16.0
    height = (min(len(order), ROWS)) * (thick + 1)
    paths = []
    for s in spans:
        left, right = max(s.start, begin), min(s.end, end)
        wide = max((right - left) / (end - begin) * 1000, 1.0)
        x, y = (left - begin) / (end - begin) * 1000, rows[s.row] * (thick + 1) + 0.5
        paths.append(f"M{x:.1f} {y:g}h{wide:.1f}v{thick:g}h{-wide:.1f}z")
    return (
        f'<span>{esc(stage)}</span><svg viewBox="0 0 1000 {height:g}" height="{height:g}" preserveAspectRatio="none" '
        f'role="img" aria-label="{esc(stage)}"><path fill="var(--c{LANES[stage]})" d="{"".join(paths)}"/></svg>'
    )
