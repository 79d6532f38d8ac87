"""Reads ``trajectories.jsonl`` by parts: of 10,000 samples in 200 MB, only what is looked at becomes objects.

A row begins with its *head*, the small values, and its bulk begins with the key "prompt". Heads are parsed when the
file is opened, a whole row when it is asked for.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from overlap.core.errors import ConfigError, refusing
from overlap.record.json_lines import whole_lines
from overlap.record.row_shapes import HEAD, check_bulk, check_form

BULK_BEGINS = b', "prompt": '
"""Bytes with which the bulk of a row begins. No text of a head holds these bytes: JSON escapes its quotes."""
_MARK = 500
"""Bytes of the last row by which it is known again: its head."""
_BUFFER = 1 << 20


class SampleHead(NamedTuple):
    """A sample without its bulk: offset and size of its row in the file, bytes, and the small values."""

    offset: int
    size: int
    values: dict[str, Any]


GroupKey = tuple[str, int, int]
"""Split, step, group."""


def group_key(values: Mapping[str, Any]) -> GroupKey:
    """The group of a sample, or of a row of groups.jsonl."""
    return values["split"], values["step"], values["group"]


class SampleFile:
    """The samples of a run, in the order in which they were written."""

    def __init__(self, path: Path) -> None:
        """A file that is missing has no samples. Nothing is read before it is asked for."""
        self.path = path
        self._heads: list[SampleHead] = []
        self._read = 0
        self._last: bytes | None = None

    def heads(self) -> list[SampleHead]:
        """All samples without their bulk, also those written since the last call. The list is not to be changed.

        Where a run went back to a checkpoint, and cut the file off before it wrote more, it is read anew. Raises
        ConfigError for a line that is no sample.
        """
        with refusing("RUN", str(self.path), "cannot be read", "name a run of yours"):
            if not self.path.exists():
                self._heads, self._read = [], 0
                return self._heads
            with self.path.open("rb", buffering=_BUFFER) as file:
                self._read_on(file)
        return self._heads

    def _read_on(self, file: BinaryIO) -> None:
        """Add the heads of what was written behind the last one; all anew where that is not in its place any more.

        The file is read, not mapped: a run that goes back cuts it off, and a page that is gone would end the process.
        """
        if self._heads and (self._last is None or self._mark(file) != self._last):
            self._heads, self._read = [], 0
        file.seek(self._read)
        for offset, line in whole_lines(file, self._read):
            bulk = line.find(BULK_BEGINS)
            fault, way_out = f"line {len(self._heads) + 1} holds no sample", "remove the line, or name a run"
            with refusing("RUN", str(self.path), fault, way_out, (ValueError, RecursionError)):
                values = json.loads(line if bulk < 0 else line[:bulk] + b"}")
                check_form(HEAD, values)
            self._heads.append(SampleHead(offset, len(line), values))
            self._read = offset + len(line)
        if self._heads:
            self._last = self._mark(file)

    def _mark(self, file: BinaryIO) -> bytes | None:
        """The beginning of the last row; None where it is gone."""
        last = self._heads[-1]
        file.seek(last.offset)
        found = file.read(min(_MARK, last.size))
        return found if len(found) == min(_MARK, last.size) else None

    def row(self, head: SampleHead) -> dict[str, Any]:
        """A whole sample. Raises ConfigError where the file has changed meanwhile."""
        path = str(self.path)
        with refusing("RUN", path, "cannot be read", "name a run of yours"), self.path.open("rb") as file:
            file.seek(head.offset)
            data = file.read(head.size)
        changed = "was changed while it was read", "try again"
        with refusing("RUN", path, *changed, (ValueError, RecursionError)):
            row: dict[str, Any] = json.loads(data)
        if type(row) is not dict or any(row.get(name) != head.values[name] for name in ("id", "step")):
            raise ConfigError("RUN", path, "; ".join(changed))
        with refusing("RUN", path, f"{row['id']} is no sample", "remove its line", (ValueError,)):
            check_bulk(row)
        return {**head.values, **row}

    def __len__(self) -> int:
        return len(self.heads())

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The whole samples, one after another."""
        return map(self.row, list(self.heads()))
