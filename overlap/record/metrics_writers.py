"""Where the rows of the steps go: ``metrics.jsonl``, and TensorBoard.

A further writer is a class with the methods of ``MetricsWriter`` and its name in ``METRICS_WRITERS``; a file that it
makes in the run directory gets a row in ``run_files``.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol

from overlap.atomic import guarded
from overlap.record.json_lines import JsonLines, append_whole, size_until
from overlap.record.run_files import RunFile


class MetricsWriter(Protocol):
    """Writes a run's metrics somewhere, a row per step. What raises OSError is reported, and the run goes on."""

    name: str
    """What reports of failed writes call it."""

    def write(self, row: Mapping[str, Any]) -> bool:
        """Write the row of the step ``row["step"]``. Returns whether all rows so far are written now."""

    def flush(self) -> bool:
        """Write rows that could not be written before. Returns whether all rows so far are written now."""

    def rewind(self, step: int) -> None:
        """Remove the rows of later steps: the run goes on after ``step``."""

    def close(self) -> None:
        """Release what is open; safe to call twice."""


class MetricsFile:
    """Rows as JSON lines in ``metrics.jsonl``; rows that could not be written are written before the next one."""

    name = str(RunFile.METRICS)

    def __init__(self, run: Path) -> None:
        self._lines = JsonLines(RunFile.METRICS.of(run))
        self._late: list[Mapping[str, Any]] = []

    def write(self, row: Mapping[str, Any]) -> bool:
        self._late.append(row)
        return self.flush()

    def flush(self) -> bool:
        while self._late:
            self._lines.append(self._late[0])
            del self._late[0]
        return True

    def rewind(self, step: int) -> None:
        self._late.clear()
        self._lines.rewind(size_until(self._lines.path, step))

    def close(self) -> None:
        self._lines.close()


class TensorBoardEvents:
    """The finite numbers of the rows as scalars in ``events/``, written through TensorBoard's record format (no torch).

    The first row makes the file. A row that could not be written is lost.
    """

    name = str(RunFile.EVENTS)

    def __init__(self, run: Path) -> None:
        self._folder = RunFile.EVENTS.of(run)
        self._path = self._folder / self._file_name()
        self._purge_from: int | None = None
        self._fd = -1

    def write(self, row: Mapping[str, Any]) -> bool:
        self._open()
        values = [
            self._summary.Value(tag=name, simple_value=value)
            for name, value in row.items()
            if name != "step" and isinstance(value, (int, float)) and math.isfinite(value)
        ]
        self._add(step=int(row["step"]), summary=self._summary(value=values))
        return False

    def flush(self) -> bool:
        return False

    def rewind(self, step: int) -> None:
        """The next row begins another file, of which TensorBoard learns that earlier rows after ``step`` are void."""
        with suppress(OSError):  # the rows that the close would have lost are void or will be written again
            self.close()
        self._path, self._purge_from = self._folder / self._file_name(), step + 1

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with guarded(self._path):
                os.close(fd)

    @staticmethod
    def _file_name() -> str:
        return f"events.out.tfevents.{int(time.time())}.overlap.{os.getpid()}"

    def _open(self) -> None:
        if self._fd >= 0:
            return
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary

        self._event, self._summary = Event, Summary
        with guarded(self._folder):
            self._folder.mkdir(exist_ok=True)
            self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            self._add(file_version="brain.Event:2")
            if self._purge_from is not None:
                self._add(step=self._purge_from, session_log=SessionLog(status=SessionLog.START))
        except OSError:
            self.close()  # a file without its first records is no file: the next row makes it again
            raise

    def _add(self, **event: Any) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter

        record = BytesIO()
        RecordWriter(record).write(self._event(wall_time=time.time(), **event).SerializeToString())
        append_whole(self._fd, self._path, record.getvalue())


METRICS_WRITERS: tuple[Callable[[Path], MetricsWriter], ...] = (MetricsFile, TensorBoardEvents)
"""Each is made with the run directory, and gets every row."""
