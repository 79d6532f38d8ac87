"""JSON-lines files: a line is written whole or not at all, and a torn last line is left out. Every failed write is a
RunDirError.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

from overlap.core.json_types import to_json_types
from overlap.process.atomic import guarded


class JsonLines:
    """Appends lines to a file, each in one system call. Raises RunDirError. The first line makes the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1

    def append(self, row: Mapping[str, Any]) -> None:
        self.append_lines(json_line(to_json_types(row)))

    def append_lines(self, lines: bytes) -> None:
        """Append lines that ``json_line`` has made, all or none of them; nothing where there are none."""
        if not lines:
            return
        with guarded(self.path):
            if self._fd < 0:
                self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            size = os.fstat(self._fd).st_size
            try:
                while lines:
                    lines = lines[os.write(self._fd, lines) :]
            except OSError:
                with suppress(OSError):  # the first error is the one to report
                    os.ftruncate(self._fd, size)
                raise

    def rewind(self, size: int) -> None:
        """Cut off what came after the first ``size`` bytes."""
        with guarded(self.path):
            if self.path.exists() and self.path.stat().st_size > size:
                os.truncate(self.path, size)

    def close(self) -> None:
        """Safe to call twice."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with guarded(self.path):
                os.close(fd)


_ENCODER = json.JSONEncoder(ensure_ascii=False)


def json_line(row: Mapping[str, Any]) -> bytes:
    """A row of JSON types as a line of UTF-8."""
    # A lone surrogate, which a tokenizer or a person may make, has no UTF-8.
    return _ENCODER.encode(row).encode("utf-8", "backslashreplace") + b"\n"


def whole_lines(file: Iterable[bytes], offset: int = 0) -> Iterator[tuple[int, bytes]]:
    """The lines of a file and where each begins, in bytes; a last line without its end, torn by a kill, is left out."""
    for line in file:
        if line.endswith(b"\n"):
            yield offset, line
        offset += len(line)


def parse_json_lines(data: bytes) -> tuple[list[Any], int]:
    """The rows of the whole lines, and the bytes that these lines take. Raises ValueError."""
    return [json.loads(line) for _, line in whole_lines(BytesIO(data)) if line.strip()], data.rfind(b"\n") + 1


def read_json_lines(path: Path, *, size: int | None = None) -> list[dict[str, Any]]:
    """Rows of the first ``size`` bytes of a file; none where there is no file. Raises OSError, ValueError."""
    rows = parse_json_lines(path.read_bytes()[:size])[0] if path.exists() else []
    if not all(isinstance(row, dict) for row in rows):
        raise ValueError("a line holds something else than an object")
    return rows


def size_until(path: Path, step: int, size: int = 0) -> int:
    """Bytes of the rows before the first one of a step later than ``step``; those of the first ``size`` bytes, which
    end a line, are not looked at. Raises RunDirError.
    """
    if not path.exists():
        return size
    with guarded(path), path.open("rb") as file:
        file.seek(size)
        for offset, line in whole_lines(file, size):
            if json.loads(line)["step"] > step:
                break
            size = offset + len(line)
    return size
