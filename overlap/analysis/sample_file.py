"""Reads ``trajectories.jsonl`` by parts: of 10,000 samples in 200 MB, only what is looked at becomes objects.

A row begins with its *head*, the small values, and its bulk begins with the key "prompt". Heads are parsed when the
file is opened, a whole row when it is asked for.
"""

from __future__ import annotations

import base64
import json
import mmap
from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from overlap.errors import ConfigError, count_of, error_reason

BULK = b', "prompt": '
"""Where the bulk of a row begins. No text of a head holds these bytes: JSON escapes its quotes."""
_MARK = 500
"""Bytes of the last row by which it is known again: its head."""
_BLOCK = 256
"""Lines whose heads are parsed together."""
FORMER: Mapping[str, Any] = {
    "schema": 1, "split": "train", "advantage": None, "parts": {}, "verdict": None, "failure": "", "dropped": "",
    "kept_as": [], "weak": False, "passed": None, "total": None, "truncated": False, "turns": 1, "branches": 1,
    "versions": [], "queue_s": 0.0, "node": "", "program_sha256": "",
}  # fmt: skip
"""What rows of the earlier format lack."""


class SampleHead(NamedTuple):
    """A sample without its bulk: where its row lies in the file, in bytes, and the small values."""

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
        self._last = b""

    def heads(self) -> list[SampleHead]:
        """All samples without their bulk, also those written since the last call. The list is not to be changed.

        Where a run went back to a checkpoint, and cut the file off before it wrote more, it is read anew. Raises
        ConfigError for a line that is no sample.
        """
        try:
            with self.path.open("rb") as file:
                size = file.seek(0, 2)
                if size == 0:
                    self._heads, self._read = [], 0
                elif size != self._read:
                    with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as data:
                        self._read_on(data, size)
        except FileNotFoundError:
            self._heads, self._read = [], 0
        except OSError as error:
            raise ConfigError("RUN", str(self.path), f"cannot be read ({error_reason(error)})") from error
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            line = len(self._heads) + 1
            raise ConfigError("RUN", str(self.path), f"line {line} holds no sample ({error}); remove it") from error
        return self._heads

    def _read_on(self, data: mmap.mmap, size: int) -> None:
        """Add the heads of what was written behind the last one; all anew where that is not in its place any more."""
        if self._heads and data[self._heads[-1].offset : self._read][:_MARK] != self._last:
            self._heads, self._read = [], 0
        for head in _heads(data, self._read, size):
            self._heads.append(head)
            self._read = head.offset + head.size
        if self._heads:
            self._last = data[self._heads[-1].offset : self._read][:_MARK]

    def row(self, head: SampleHead) -> dict[str, Any]:
        """A whole sample. Raises ConfigError where the file has changed meanwhile."""
        try:
            with self.path.open("rb") as file:
                file.seek(head.offset)
                row: dict[str, Any] = json.loads(file.read(head.size))
        except OSError as error:
            raise ConfigError("RUN", str(self.path), f"cannot be read ({error_reason(error)})") from error
        except ValueError as error:
            raise ConfigError("RUN", str(self.path), "was changed while it was read; try again") from error
        return {**head.values, **row}

    def __repr__(self) -> str:
        return f"SampleFile({str(self.path)!r}: {count_of(len(self), 'sample')})"

    def __len__(self) -> int:
        return len(self.heads())

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The whole samples, one after another."""
        return map(self.row, list(self.heads()))


def _heads(data: mmap.mmap, at: int, size: int) -> Iterator[SampleHead]:
    """The heads of the whole lines from ``at`` on; a torn last line is left out."""
    block: list[tuple[int, int, int]] = []
    while (end := data.find(b"\n", at, size)) >= 0:
        bulk = data.find(BULK, at, end)
        # A row of the earlier format has small values behind its bulk.
        former = bulk < 0 or data[at : at + 11] != b'{"schema": '
        block.append((at, end + 1, -1 if former else bulk))
        at = end + 1
        if len(block) == _BLOCK:
            yield from _parsed(data, block)
            block = []
    yield from _parsed(data, block)


def _parsed(data: mmap.mmap, block: list[tuple[int, int, int]]) -> Iterator[SampleHead]:
    """The heads of some lines: where each begins, ends, and where its bulk begins (-1: in the earlier format)."""
    try:
        # One text: the parser then shares the keys of all rows, in half of the time.
        text = b",".join(data[at:bulk] + b"}" for at, _, bulk in block if bulk >= 0)
        found = iter(json.loads(b"[" + text + b"]"))
        rows = [next(found) if bulk >= 0 else _former_head(json.loads(data[at:end])) for at, end, bulk in block]
        heads = [SampleHead(at, end - at, values) for (at, end, _), values in zip(block, rows, strict=True)]
        if not all(type(row) is dict for row in rows) or next(found, None) is not None:
            raise ValueError("a line is no object")
    except (ValueError, LookupError, TypeError, AttributeError, StopIteration):
        if len(block) == 1:
            raise ValueError("it is no JSON object with the keys of one") from None
        for line in block:
            yield from _parsed(data, [line])
        return
    yield from heads


def _former_head(row: dict[str, Any]) -> dict[str, Any]:
    """The head of a row of schema 1, which had no key of that name."""
    group, _, sample = row["id"].removeprefix("g").partition("s")
    return {
        **FORMER,
        **{name: value for name, value in row.items() if name not in ("prompt", "answer", "dialog", "tests")},
        "group": int(group),
        "sample": int(sample),
        "truncated": row["finish"] != "stop",
    }


def unpacked_ints(text: str) -> array[int]:
    """The int32 values of a row's base64 text, [T]."""
    return _unpacked("i", text)


def unpacked_floats(text: str) -> array[float]:
    """The float32 values of a row's base64 text, [T]."""
    return _unpacked("f", text)


def unpacked_bytes(text: str) -> bytes:
    """The bytes of a row's base64 text, [T]."""
    return base64.b64decode(text, validate=True)


def _unpacked(code: str, text: str) -> array[Any]:
    values: array[Any] = array(code)
    values.frombytes(base64.b64decode(text, validate=True))
    return values
