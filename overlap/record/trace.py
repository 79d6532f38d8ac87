"""The timeline of a run that Perfetto and chrome://tracing open: the spans of each step, in a lane per stage.

The file is Chrome's JSON array of events, whose closing bracket may be missing: events are appended, and ``close`` adds
the bracket. Of a long run every step is drawn until the file has ``WINDOW_BYTES``, then every second one until it has
twice that, every fourth one until three times, and so on: it grows by the logarithm of the number of steps, and a run
that is resumed goes on in the same way.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from overlap.core.json_types import to_json_types
from overlap.record.json_lines import JsonLines
from overlap.record.timing import judged, run_span

if TYPE_CHECKING:
    from overlap.core import Group
    from overlap.pipeline.learning import StepResult

STAGES = ("generate", "verify", "collect", "learn", "load", "evaluate")
WINDOW_BYTES = 16 << 20
ROWS = 100_000
"""Row numbers that a lane has: a thread id is lane * ROWS + row, because Perfetto wants them unique in the file."""


class Tracer:
    """Draws finished steps. May be used from any thread, one call at a time.

    Spans of one lane that overlap in time get different rows: of the rows that were free when the span began, the
    one whose last span ended latest. Given in the order of their ends, they need no more rows than were open at once.
    """

    def __init__(self, path: Path, *, origin_s: float | None = None, after: tuple[int, float] | None = None) -> None:
        """``origin_s`` is time zero of the trace. The first flush makes the file.

        ``after``: go on with the file of an earlier run, from ``position`` as it was then; its time goes on, too. What
        began before that is left out: its rows are taken.
        """
        self._file, self._began, self._closed = JsonLines(path), False, False
        self._origin_s = time.monotonic() if origin_s is None else origin_s
        self._pending: list[str] = []
        self._rows: dict[str, list[float]] = {}
        """By lane, the end of each row's last span."""
        self.position = (0, 0.0)
        """Bytes written, the closing bracket left out, and the end of the last span, µs: for a checkpoint."""
        self._first_s = -math.inf
        if after and after[0] and path.is_file() and path.stat().st_size >= after[0]:
            self.position = after
            self._first_s = self._origin_s
            self._origin_s -= after[1] / 1e6

    def step(self, result: StepResult) -> None:
        """All spans of a finished step: its samples, the learner's step, the weight sync (publish to loaded), and in
        the lane "collect" its groups, from the first verdict to the last. Raises RunDirError.
        """
        batch, report = result.batch, result.report
        if batch.step % (1 << self.position[0] // WINDOW_BYTES):
            return
        for made in sorted((s.trajectory for s in batch.all_samples), key=lambda t: t.finished_s):
            args = {"prompt": made.request.prompt.id, "tokens": made.sampled, "finish": made.finish}
            self.span("generate", made.started_s, made.finished_s, made.id, **args)
        for scored in sorted(judged(batch.all_samples), key=lambda s: s.finished_s):
            verdict, node = scored.failure, ""
            if scored.judgement:
                verdict, node = str(scored.judgement.verdict), scored.judgement.node
            self.span("verify", *run_span(scored), scored.id, reward=scored.reward, verdict=verdict, node=node)
        for group in sorted((g for g in (*batch.groups, *batch.dropped) if judged(g.samples)), key=_completed_s):
            first_s = min(s.finished_s for s in judged(group.samples))
            self.span("collect", first_s, _completed_s(group), f"group {group.id}", dropped=group.dropped)
        if report:
            self.span("learn", *result.learn_span, f"step {batch.step}", groups=len(batch.groups))
            self.span("load", *result.sync_span, f"version {report.version}")
            self.span("load", *result.parity_span, f"parity of version {report.version}", gap=result.parity)
        self.flush()

    def span(self, stage: str, start_s: float, end_s: float, name: str, **args: Any) -> None:
        """Draw something that took from ``start_s`` to ``end_s`` (time.monotonic()); ``args`` show when it is clicked.
        ``flush`` writes it.
        """
        if start_s < self._first_s:
            return
        tid = self._row(stage, start_s, end_s)
        begin_us, end_us = (round((at_s - self._origin_s) * 1e6, 1) for at_s in (start_s, end_s))
        self.position = self.position[0], max(self.position[1], end_us)
        duration = max(0.0, round(end_us - begin_us, 1))
        self._event(ph="X", name=name, cat=stage, ts=begin_us, dur=duration, tid=tid, args=to_json_types(args))

    def flush(self) -> None:
        """Write what is pending. Raises RunDirError; then the spans are lost."""
        events, self._pending = self._pending, []
        if not events:
            return
        size, last_us = self.position
        if not self._began:
            self._file.rewind(size)
            self._began = True
        data = (b",\n" if size else b"[\n") + ",\n".join(events).encode()
        self._file.append_lines(data)
        self.position = size + len(data), last_us

    def close(self) -> None:
        """Flush, end the file and close it; safe to call twice. Raises RunDirError."""
        if self._closed:
            return
        self._closed = True
        try:
            self.flush()
            if self._began:
                self._file.append_lines(b"\n]\n")
        finally:
            self._file.close()

    def _row(self, stage: str, start_s: float, end_s: float) -> int:
        """The thread id of a row that is free. A lane is a process to Perfetto, so that its rows fold together."""
        lane = STAGES.index(stage) + 1
        if stage not in self._rows:
            self._rows[stage] = []
            self._meta("process_name", lane * ROWS, name=stage)
            self._meta("process_sort_index", lane * ROWS, sort_index=lane)
        ends: list[float] = self._rows[stage]
        free: Sequence[int] = [row for row, end in enumerate(ends) if end <= start_s]
        if free:
            row = max(free, key=lambda r: ends[r])
        else:
            row = len(ends)
            ends.append(end_s)
            self._meta("thread_name", lane * ROWS + row, name=stage if row == 0 else f"{stage} {row + 1}")
            self._meta("thread_sort_index", lane * ROWS + row, sort_index=row)
        ends[row] = max(ends[row], end_s)
        return lane * ROWS + row

    def _meta(self, what: str, tid: int, **args: Any) -> None:
        self._event(ph="M", name=what, tid=tid, args=args)

    def _event(self, *, tid: int, **event: Any) -> None:
        self._pending.append(json.dumps({**event, "pid": tid // ROWS, "tid": tid}))


def _completed_s(group: Group) -> float:
    return max(sample.finished_s for sample in judged(group.samples))
