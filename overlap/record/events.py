"""The rows of the steps for TensorBoard, written in the caller's thread through its own record format (no torch)."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from overlap.atomic import guarded
from overlap.record.json_lines import append_whole


class Events:
    """Scalars in a file of ``folder``, made by the first of them. Raises RunDirError."""

    def __init__(self, folder: Path, *, purge_from: int | None = None) -> None:
        """``purge_from``: first step of a resumed run; TensorBoard forgets what earlier files say of it and after."""
        self._folder, self._purge_from = folder, purge_from
        self._path = folder / f"events.out.tfevents.{int(time.time())}.overlap.{os.getpid()}"
        self._fd = -1

    def write(self, data: bytes) -> None:
        """Called by the RecordWriter with one whole record."""
        append_whole(self._fd, self._path, data)

    def add(self, step: int, row: Mapping[str, Any]) -> None:
        """Write the finite numbers of a row."""
        self._open()
        values = [
            self._summary.Value(tag=name, simple_value=value)
            for name, value in row.items()
            if isinstance(value, (int, float)) and math.isfinite(value)
        ]
        self._add(step=step, summary=self._summary(value=values))

    def _open(self) -> None:
        if self._fd >= 0:
            return
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary = Event, Summary
        with guarded(self._folder):
            self._folder.mkdir(exist_ok=True)
            self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._record = RecordWriter(self)
        try:
            self._add(file_version="brain.Event:2")
            if self._purge_from is not None:
                self._add(step=self._purge_from, session_log=SessionLog(status=SessionLog.START))
        except OSError:
            self.close()  # a file without its first records is no file: the next row makes it again
            raise

    def _add(self, **event: Any) -> None:
        self._record.write(self._event(wall_time=time.time(), **event).SerializeToString())

    def close(self) -> None:
        """Safe to call twice."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with guarded(self._path):
                os.close(fd)
