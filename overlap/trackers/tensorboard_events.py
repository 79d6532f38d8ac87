"""TensorBoard: the rows as scalars in ``events/``, written through its record format. Needs no torch, and no process of
its own.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

from overlap.atomic import guarded
from overlap.record.json_lines import append_whole
from overlap.record.run_files import RunFile
from overlap.trackers.tracker import TrackedRun


class TensorBoardEvents:
    """Implements ``Tracker``. The first row makes the file. A row that could not be written is lost."""

    def __init__(self) -> None:
        self._folder = self._path = Path()
        self._purge_from: int | None = None
        self._fd = -1
        self._config: Mapping[str, Any] | None = None

    def start(self, run: TrackedRun) -> None:
        self._folder = RunFile.EVENTS.of(Path(run.folder))
        self._config = run.config
        self._path = self._folder / self._file_name()
        if run.resumed:
            self.rewind(run.step)

    def row(self, row: Mapping[str, Any]) -> None:
        self._open()
        values = [self._summary.Value(tag=name, simple_value=value) for name, value in row.items() if name != "step"]
        self._add(step=int(row["step"]), summary=self._summary(value=values))
        if self._config is not None:
            config, self._config = self._config, None
            self._add_text("config", 0, json.dumps(config, indent=1))

    def samples(self, split: str, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        self._open()
        self._add_text(f"samples/{split}", step, "\n\n".join(json.dumps(row, indent=1) for row in rows))

    def rewind(self, step: int) -> None:
        """The next row begins another file, of which TensorBoard learns that earlier rows after ``step`` are void."""
        with suppress(OSError):  # the rows that the close would have lost are void or will be written again
            self._close()
        self._path, self._purge_from = self._folder / self._file_name(), step + 1

    def end(self, exit: str, figures: Mapping[str, Any]) -> None:
        if self._fd >= 0 and figures:
            self._add_text("outcome", 0, json.dumps({"exit": exit, **figures}, indent=1))
        self._close()

    def _close(self) -> None:
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
            self._close()  # a file without its first records is no file: the next row makes it again
            raise

    def _add_text(self, tag: str, step: int, text: str) -> None:
        """A text for the page of texts, as code."""
        from tensorboard.compat.proto.summary_pb2 import SummaryMetadata
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
        from tensorboard.plugins.text.plugin_data_pb2 import TextPluginData

        plugin = SummaryMetadata.PluginData(plugin_name="text", content=TextPluginData(version=0).SerializeToString())
        code = "\n".join(f"    {line}" for line in text.splitlines())
        tensor = TensorProto(
            dtype="DT_STRING",
            string_val=[code.encode()],
            tensor_shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)]),
        )
        value = self._summary.Value(tag=tag, metadata=SummaryMetadata(plugin_data=plugin), tensor=tensor)
        self._add(step=step, summary=self._summary(value=[value]))

    def _add(self, **event: Any) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter

        record = BytesIO()
        RecordWriter(record).write(self._event(wall_time=time.time(), **event).SerializeToString())
        append_whole(self._fd, self._path, record.getvalue())
