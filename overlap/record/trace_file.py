"""A timeline that Perfetto and chrome://tracing open, as a file: lanes of rows of spans, arrows, counters and marks.

The file is Chrome's JSON array of events, and a complete JSON document after every flush: new events are written
over the closing bracket, which follows them. So memory is bounded and a crash leaves a trace that still loads.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from overlap.core.errors import RunDirError
from overlap.core.json_types import to_json_types
from overlap.process.atomic import guarded

STAGES = ("admit", "generate", "verify", "collect", "learn", "publish", "load", "evaluate")
FLUSH_EVERY = 512
"""Events that wait in memory, at most."""
ROWS = 100_000
"""Row numbers that a lane has: a thread id is lane * ROWS + row, because Perfetto wants them unique in the file."""
_CLOSE = b"\n]\n"
_NAMES = '{"ph": "M"'
_COUNTERS = len(STAGES) + 1
_TICK_US = 0.1
"""Resolution of times."""


@dataclass(frozen=True, slots=True)
class DrawnSpan:
    """Position of a span: its row, and its beginning and end in the trace, µs."""

    tid: int
    begin_us: float
    end_us: float


class TraceFile:
    """Append-only spans, packed into rows. May be used from any thread, one call at a time.

    Spans of one lane that overlap in time get different rows: of the rows that were free when the span began, the
    one whose last span ended latest. Given in the order of their ends, they need no more rows than were open at once.
    """

    def __init__(self, path: Path, *, origin_s: float | None = None, after: tuple[int, float] | None = None) -> None:
        """``origin_s`` is time zero of the trace. The first flush makes the file.

        ``after``: go on with the file of an earlier run, from ``position`` as it was then; its time goes on, too. What
        began before that is left out: its rows are taken.
        """
        self._path = path
        self._origin_s = time.monotonic() if origin_s is None else origin_s
        self._pending: list[str] = []
        self._rows: dict[str, list[float]] = {}
        """By lane, the end of each row's last span."""
        self._counts = False
        """The lane of the counters has its name."""
        self._fd = -1
        self._end, self._last_us = 0, 0.0
        self._first_s = -math.inf
        if after and after[0] > 1 and path.is_file() and path.stat().st_size >= after[0]:
            self._end, self._last_us = after
            self._first_s = self._origin_s
            self._origin_s -= self._last_us / 1e6

    @property
    def position(self) -> tuple[int, float]:
        """Bytes written, the closing bracket left out, and the end of the last span, µs: for a checkpoint."""
        return self._end, self._last_us

    def open(self) -> None:
        """Make the file, a complete trace from the first moment on. Raises RunDirError."""
        if self._fd >= 0:
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (0 if self._end else os.O_TRUNC)
        with guarded(self._path):
            self._fd = os.open(self._path, flags, 0o644)
        try:
            self._write((b"" if self._end else b"[") + _CLOSE)
            with guarded(self._path):
                os.ftruncate(self._fd, (self._end or 1) + len(_CLOSE))
        except RunDirError:
            with suppress(OSError):  # the first error is the one to report
                os.ftruncate(self._fd, self._end)
            os.close(self._fd)
            self._fd = -1
            raise
        self._end = self._end or 1

    def span(self, stage: str, start_s: float, end_s: float, name: str, **args: Any) -> DrawnSpan | None:
        """Something that took from ``start_s`` to ``end_s`` (time.monotonic()); ``args`` show when it is clicked.
        Returns where it is; None where it began before this run and is left out.
        """
        if start_s < self._first_s:
            return None
        tid = self._row(stage, start_s, end_s)
        self._last_us = max(self._last_us, self._us(end_s))
        duration = max(0.0, round(self._us(end_s) - self._us(start_s), 1))
        self._event(ph="X", name=name, cat=stage, ts=self._us(start_s), dur=duration, tid=tid, args=args)
        return DrawnSpan(tid, self._us(start_s), round(self._us(start_s) + duration, 1))

    def flow(self, number: int, spans: Sequence[DrawnSpan]) -> None:
        """An arrow from the end of the first span to the beginning of the next, and so on. ``number`` is its own among
        all flows of the file.
        """
        for place, span in enumerate(spans if len(spans) > 1 else ()):
            first, last = place == 0, place == len(spans) - 1
            # A flow belongs to the span that is open at its time, so its time is inside, by the resolution at least.
            at = max(span.begin_us, span.end_us - _TICK_US) if first else min(span.end_us, span.begin_us + _TICK_US)
            kind: dict[str, Any] = {"ph": "s"} if first else {"ph": "f", "bp": "e"} if last else {"ph": "t"}
            self._event(**kind, name="sample", cat="sample", id=number, ts=round(at, 1), tid=span.tid)

    def counter(self, name: str, at_s: float, **values: float) -> None:
        """Levels from here to the next of the name; a curve for each of the values."""
        if at_s >= self._first_s:
            self._name_counters()
            self._event(ph="C", name=name, ts=self._us(at_s), tid=_COUNTERS * ROWS, args=values)

    def mark(self, name: str, at_s: float) -> None:
        """A line through all lanes."""
        if at_s >= self._first_s:
            self._name_counters()
            self._event(ph="i", s="g", name=name, ts=self._us(at_s), tid=_COUNTERS * ROWS)

    def _name_counters(self) -> None:
        if not self._counts:
            self._counts = True
            self._meta("process_name", _COUNTERS, name="counters")
            self._meta("process_sort_index", _COUNTERS, sort_index=0)

    def flush(self) -> None:
        """Write what is pending. Raises RunDirError; then the spans are lost, but not the names of their rows."""
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        try:
            self.open()
            data = (b"\n" if self._end == 1 else b",\n") + ",\n".join(pending).encode()
            self._write(data + _CLOSE)
        except RunDirError:
            self._pending = [event for event in pending if event.startswith(_NAMES)]
            raise
        self._end += len(data)

    def close(self) -> None:
        """Flush and close; safe to call twice. Raises RunDirError."""
        try:
            self.flush()
        finally:
            fd, self._fd = self._fd, -1
            self._pending.clear()
            if fd >= 0:
                with guarded(self._path):
                    os.close(fd)

    def _us(self, at_s: float) -> float:
        return round((at_s - self._origin_s) * 1e6, 1)

    def _lane(self, stage: str) -> int:
        """Number of the stage's lane, from 1. A lane is a process to Perfetto, so that its rows fold together."""
        lane = STAGES.index(stage) + 1
        if stage not in self._rows:
            self._rows[stage] = []
            self._meta("process_name", lane, name=stage)
            self._meta("process_sort_index", lane, sort_index=lane)
        return lane

    def _row(self, stage: str, start_s: float, end_s: float) -> int:
        lane = self._lane(stage)
        ends = self._rows[stage]
        free = [row for row, end in enumerate(ends) if end <= start_s]
        if free:
            row = max(free, key=lambda r: ends[r])
        else:
            row = len(ends)
            ends.append(end_s)
            self._meta("thread_name", lane, row, name=stage if row == 0 else f"{stage} {row + 1}")
            self._meta("thread_sort_index", lane, row, sort_index=row)
        ends[row] = max(ends[row], end_s)
        return lane * ROWS + row

    def _meta(self, what: str, lane: int, row: int = 0, **args: Any) -> None:
        self._event(ph="M", name=what, tid=lane * ROWS + row, args=args)

    def _event(self, *, tid: int, **event: Any) -> None:
        if "args" in event:
            event["args"] = to_json_types(event["args"])
        self._pending.append(json.dumps({**event, "pid": tid // ROWS, "tid": tid}))
        if len(self._pending) >= FLUSH_EVERY:
            self.flush()

    def _write(self, data: bytes) -> None:
        """Write over the closing bracket; if that fails, put the bracket back."""
        at, left = self._end, data
        with guarded(self._path):
            try:
                while left:
                    written = os.pwrite(self._fd, left, at)
                    at, left = at + written, left[written:]
            except OSError:
                with suppress(OSError):  # the first error is the one to report
                    os.pwrite(self._fd, _CLOSE, self._end)
                    os.ftruncate(self._fd, self._end + len(_CLOSE))
                raise
