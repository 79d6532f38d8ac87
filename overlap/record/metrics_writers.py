"""Where the rows of the steps go: ``metrics.jsonl``, and what ``RunDir.add_writer`` adds (``overlap.trackers``)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from overlap.record.json_lines import JsonLines, size_until
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
