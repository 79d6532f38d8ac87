"""Reads ``trajectories.jsonl`` by parts: of 10,000 samples in 200 MB, only what is looked at becomes objects.

A row begins with its *head*, the small values, and its bulk begins with the key "prompt". Heads are parsed when the
file is opened, a whole row when it is asked for.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from overlap.core.errors import ConfigError, count_of, error_reason
from overlap.record.row_shapes import HEADS, check_bulk, check_form

BULK_BEGINS = b', "prompt": '
"""Bytes with which the bulk of a row begins. No text of a head holds these bytes: JSON escapes its quotes."""
_MARK = 500
"""Bytes of the last row by which it is known again: its head."""
_BLOCK = 256
"""Lines whose heads are parsed together."""
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
        try:
            with self.path.open("rb", buffering=_BUFFER) as file:
                self._read_on(file)
        except FileNotFoundError:
            self._heads, self._read = [], 0
        except OSError as error:
            raise ConfigError("RUN", str(self.path), f"cannot be read ({error_reason(error)})") from error
        except ValueError as error:
            line = len(self._heads) + 1
            raise ConfigError(
                "RUN", str(self.path), f"line {line} holds no sample ({error}); remove the line, or name a run"
            ) from error
        return self._heads

    def _read_on(self, file: BinaryIO) -> None:
        """Add the heads of what was written behind the last one; all anew where that is not in its place any more.

        The file is read, not mapped: a run that goes back cuts it off, and a page that is gone would end the process.
        """
        if self._heads and (self._last is None or self._mark(file) != self._last):
            self._heads, self._read = [], 0
        file.seek(self._read)
        for head in _heads(file, self._read):
            self._heads.append(head)
            self._read = head.offset + head.size
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
        try:
            with self.path.open("rb") as file:
                file.seek(head.offset)
                row: dict[str, Any] = json.loads(file.read(head.size))
        except OSError as error:
            raise ConfigError("RUN", str(self.path), f"cannot be read ({error_reason(error)})") from error
        except (ValueError, RecursionError) as error:
            raise self._changed() from error
        if type(row) is not dict or any(row.get(name) != head.values[name] for name in ("id", "step")):
            raise self._changed()
        try:
            check_bulk(row)
        except ValueError as error:
            raise ConfigError("RUN", str(self.path), f"{row['id']} is no sample ({error}); remove its line") from error
        return {**head.values, **row}

    def __repr__(self) -> str:
        return f"SampleFile({str(self.path)!r}: {count_of(len(self), 'sample')})"

    def _changed(self) -> ConfigError:
        return ConfigError("RUN", str(self.path), "was changed while it was read; try again")

    def __len__(self) -> int:
        return len(self.heads())

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The whole samples, one after another."""
        return map(self.row, list(self.heads()))


def _heads(file: BinaryIO, at: int) -> Iterator[SampleHead]:
    """The heads of the whole lines of ``file``, which begin at ``at``; a torn last line is left out."""
    block: list[tuple[int, int, bytes]] = []
    for line in file:
        if not line.endswith(b"\n"):
            break
        bulk = line.find(BULK_BEGINS)
        block.append((at, len(line), line if bulk < 0 else line[:bulk] + b"}"))
        at += len(line)
        if len(block) == _BLOCK:
            yield from _parsed(block)
            block = []
    yield from _parsed(block)


def _parsed(block: list[tuple[int, int, bytes]]) -> Iterator[SampleHead]:
    """The heads of some lines, each with its offset, its size and the JSON of its head. Raises ValueError at the first
    that holds none.
    """
    try:
        # One text: the parser then shares the keys of all rows, in half of the time.
        found = json.loads(b"[" + b",".join(text for _, _, text in block) + b"]")
        if len(found) != len(block):
            raise ValueError("it is no JSON object with the keys of one")
        check_form(HEADS, found)
    except (ValueError, RecursionError) as error:
        if len(block) == 1:
            why = "it is no JSON object" if isinstance(error, RecursionError | json.JSONDecodeError) else str(error)
            raise ValueError(why) from None
        for line in block:
            yield from _parsed([line])
        return
    for (offset, size, _), head in zip(block, found, strict=True):
        yield SampleHead(offset, size, head)
