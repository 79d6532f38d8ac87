"""Lines that are never half there, and where a command may write. Every failed write is a RunDirError."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from overlap.atomic import guarded
from overlap.errors import ConfigError


def check_out(out: Path, *, field: str = "--out", ours: str = "", folder: bool = False) -> None:
    """Before the minutes of work, not after: may a command make ``out``, a file or a ``folder``? Raises ConfigError.

    What is there already is not written over, unless it is a file that is empty or whose first line contains ``ours``,
    the mark of what the same command wrote before.
    """
    try:
        if folder and os.path.lexists(out):
            raise ConfigError(field, str(out), "exists already; name another folder, or remove it first")
        if out.is_dir():
            raise ConfigError(field, str(out), "is a folder; name a file")
        with suppress(FileNotFoundError, NotADirectoryError):
            out.lstat()  # raises for a name that no file system takes
        if not out.parent.is_dir():
            raise ConfigError(field, str(out), "its directory does not exist; make it, or name another place")
        if not os.access(out.parent, os.W_OK | os.X_OK):
            raise ConfigError(field, str(out), "its directory cannot be written; name another place")
        if not os.path.lexists(out):
            return
        if not out.is_file() or not _may_replace(out, ours):
            raise ConfigError(field, str(out), "exists already; name another file, or remove it first")
    except (OSError, ValueError) as exc:
        if isinstance(exc, ConfigError):
            raise
        kind = "folder" if folder else "file"
        raise ConfigError(field, str(out), f"cannot be used ({exc}); name another {kind}") from exc


def _may_replace(out: Path, ours: str) -> bool:
    with out.open("rb") as file:
        first = file.readline(1 << 20).decode("utf-8", "replace")
    return not first or bool(ours and ours in first)


def to_json_types(value: Any) -> Any:
    """``value`` as JSON types: mappings, lists, strings, finite numbers. NaN and infinities become None."""
    if isinstance(value, Mapping):
        return {str(k): to_json_types(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_json_types(v) for v in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int)):
        return value
    return str(value)


class JsonLines:
    """A JSON-lines file. A line is written whole, in one system call, or not at all. Raises RunDirError.

    The file is opened by the first line. With ``keep``, lines that could not be written go before the next one.
    """

    def __init__(self, path: Path, *, keep: bool = False) -> None:
        self.path, self._keep = path, keep
        self._late = b""
        self._fd = -1

    @property
    def offset(self) -> int:
        """Bytes in the file: where the next line starts."""
        try:
            return os.fstat(self._fd).st_size if self._fd >= 0 else self.path.stat().st_size
        except OSError:
            return 0

    def append(self, row: Mapping[str, Any]) -> None:
        # A lone surrogate, which a tokenizer or a person may make, has no UTF-8.
        line = (json.dumps(to_json_types(row), ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")
        data = self._late + line
        self._late = data if self._keep else b""
        self._open()
        append_whole(self._fd, self.path, data)
        self._late = b""

    def _open(self) -> None:
        if self._fd < 0:
            with guarded(self.path):
                self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def rewind(self, size: int) -> None:
        """Cut off what came after the first ``size`` bytes, lines that are late included."""
        self._late = b""
        with guarded(self.path):
            if self.path.exists() and self.path.stat().st_size > size:
                os.truncate(self.path, size)

    def catch_up(self) -> bool:
        """Write the lines that are late; returns whether there were any."""
        if not self._late:
            return False
        self._open()
        append_whole(self._fd, self.path, self._late)
        self._late = b""
        return True

    def close(self) -> None:
        """Write what is late, and close; safe to call twice."""
        try:
            self.catch_up()
        finally:
            close_fd, self._fd = self._fd, -1
            if close_fd >= 0:
                with guarded(self.path):
                    os.close(close_fd)


def append_whole(fd: int, path: Path, data: bytes) -> None:
    """Append all of ``data`` to ``fd`` (opened with O_APPEND), or nothing: a partial write is cut off again."""
    with guarded(path):
        size = os.fstat(fd).st_size
        try:
            while data:
                data = data[os.write(fd, data) :]
        except OSError:
            with suppress(OSError):  # not a regular file: the first error is the one to tell
                os.ftruncate(fd, size)
            raise


def size_until(path: Path, step: int) -> int:
    """Bytes of the rows of a JSON-lines file before the first of a later step. Raises RunDirError."""
    size = 0
    with guarded(path), suppress(FileNotFoundError), path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n") or json.loads(line)["step"] > step:
                break
            size += len(line)
    return size


def read_json_lines(path: Path, *, size: int | None = None) -> list[dict[str, Any]]:
    """Rows of the first ``size`` bytes of a JSON-lines file; no file has none, and a torn last line is left out."""
    try:
        lines = path.read_bytes()[:size].decode("utf-8").split("\n")
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines[:-1] if line]
