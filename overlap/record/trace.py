"""A timeline of the run that Perfetto and chrome://tracing open: one lane per stage, one row per concurrent sample.

The file is Chrome's JSON array of events, and a complete JSON document after every flush: new events are written
over the closing bracket, which follows them. So memory is bounded and a crash leaves a trace that still loads.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from overlap.atomic import guarded
from overlap.errors import RunDirError
from overlap.json_types import to_json_types
from overlap.record.timing import judged, run_span

if TYPE_CHECKING:
    from overlap.core import ClusterFigures, Group, Scored, Trajectory
    from overlap.pipeline import StepResult

STAGES = ("admit", "generate", "verify", "collect", "learn", "publish", "load", "evaluate")
FLUSH_EVERY = 512
"""Events that wait in memory, at most."""
ROWS = 100_000
"""Row numbers that a lane has: a thread id is lane * ROWS + row, because Perfetto wants them unique in the file."""
_CLOSE = b"\n]\n"
_NAMES = '{"ph": "M"'


class Tracer:
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

    def span(self, stage: str, start_s: float, end_s: float, name: str, **args: Any) -> None:
        """Something that took from ``start_s`` to ``end_s`` (time.monotonic()); ``args`` show when it is clicked."""
        if start_s < self._first_s:
            return
        tid = self._row(stage, start_s, end_s)
        self._last_us = max(self._last_us, self._us(end_s))
        duration = max(0.0, round(self._us(end_s) - self._us(start_s), 1))
        self._event(ph="X", name=name, cat=stage, ts=self._us(start_s), dur=duration, tid=tid, args=args)

    def step(self, result: StepResult, nodes: ClusterFigures | None = None) -> None:
        """All spans of a finished step: its samples, the learner's step, the weight sync (publish to loaded), and in
        the lane "collect" its groups, from the first verdict to the last. ``nodes`` says how well their clocks are
        known.
        """
        errors_s = {node.node: node.error_s for node in nodes.nodes} if nodes else {}
        batch, report = result.batch, result.report
        groups = (*batch.groups, *batch.dropped)
        for scored in sorted(batch.all_samples, key=lambda s: s.trajectory.finished_s):
            self._generated(scored.trajectory)
        for scored in sorted(judged(batch.all_samples), key=lambda s: s.finished_s):
            self._verified(scored, errors_s)
        for group in sorted((g for g in groups if judged(g.samples)), key=_completed_s):
            began_s = min(s.finished_s for s in judged(group.samples))
            args = {"rewards": group.rewards, "dropped": group.dropped}
            self.span("collect", began_s, _completed_s(group), f"group {group.id}", **args)
        if report:
            self.span("learn", *result.learn_span, f"step {batch.step}", groups=len(batch.groups))
            self.span("load", *result.sync_span, f"version {report.version}")
            self.span("load", *result.parity_span, f"parity of version {report.version}", gap=result.parity)
        self.flush()

    def _generated(self, trajectory: Trajectory) -> None:
        args: dict[str, Any] = {
            "prompt": trajectory.request.prompt.id,
            "tokens": trajectory.sampled,
            "finish": trajectory.finish,
            "versions": [span.version for span in trajectory.spans],
        }
        if (used := trajectory.used) is not None:
            args |= {"turns": used.turns, "branches": len(trajectory.branches)}
        self.span("generate", trajectory.started_s, trajectory.finished_s, trajectory.id, **args)

    def _verified(self, scored: Scored, errors_s: Mapping[str, float]) -> None:
        args: dict[str, Any] = {
            "reward": scored.reward,
            "verdict": str(scored.judgement.verdict) if scored.judgement else scored.failure,
            "queue_s": scored.started_s - scored.queued_s,
        }
        began_s, ended_s = run_span(scored)
        if scored.judgement and (node := scored.judgement.node):
            args |= {"node": node, "back_s": scored.finished_s - ended_s, "clock_error_s": errors_s.get(node)}
        self.span("verify", began_s, ended_s, scored.id, **args)

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
        self._pending.append(
            json.dumps({**event, "pid": tid // ROWS, "tid": tid, "args": to_json_types(event["args"])})
        )
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


def _completed_s(group: Group) -> float:
    return max(sample.finished_s for sample in judged(group.samples))
