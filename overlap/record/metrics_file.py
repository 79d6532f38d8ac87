"""The rows of the steps in ``metrics.jsonl``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from overlap.record.json_lines import JsonLines, size_until
from overlap.record.run_files import RunFile


class MetricsFile:
    """Rows as JSON lines in ``metrics.jsonl``; rows that could not be written are written before the next one."""

    def __init__(self, run: Path) -> None:
        self._lines = JsonLines(RunFile.METRICS.of(run))
        self._late: list[Mapping[str, Any]] = []

    def add(self, row: Mapping[str, Any]) -> None:
        """Have ``flush`` write a row."""
        self._late.append(row)

    def flush(self) -> None:
        """Write all rows that are not written. Raises RunDirError; what is left is written by a later call."""
        while self._late:
            self._lines.append(self._late[0])
            del self._late[0]

    def rewind(self, step: int) -> None:
        """Remove the rows of later steps: the run goes on after ``step``."""
        self._late.clear()
        self._lines.rewind(size_until(self._lines.path, step))

    def close(self) -> None:
        """Close the file; safe to call twice."""
        self._lines.close()
