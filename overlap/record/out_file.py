"""Output of a command to ``--out``: a whole file or none, or a stream into standard output, a pipe or a device."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

from overlap.core.errors import RunDirError, error_reason, refusing
from overlap.process.atomic import descriptor_of, is_stdout, write_atomic
from overlap.record.ownership import check_out


class OutFile:
    """The place that a command will write to, opened before the minutes of work: ``quiet`` takes standard output away
    meanwhile, and a pipe without a reader is reported at once.
    """

    def __init__(self, path: Path, *, field: str = "--out", ours: str = "") -> None:
        """``ours``: see ``check_out``. Raises ConfigError for what may not be written."""
        self.path = path
        self._stream: BinaryIO | None = None
        way_out = "start what reads it first, or name another place"
        with refusing(field, str(path), "cannot be written", way_out):
            if descriptor_of(path) is not None or path.is_fifo() or path.is_char_device():
                self._stream = _opened(path)
        if self._stream is None:
            check_out(path, field=field, ours=ours)

    @property
    def is_stream(self) -> bool:
        """True when the output is a stream and no file."""
        return self._stream is not None

    @property
    def folder(self) -> Path:
        """The folder from which it names other files."""
        return Path.cwd() if self.is_stream else self.path.resolve().parent

    def write(self, data: str | bytes) -> None:
        """Write all of it; once. Raises RunDirError, and BrokenPipeError where the reader has gone."""
        if self._stream is None:
            write_atomic(self.path, data)
            return
        try:
            with self._stream as stream:
                stream.write(data.encode("utf-8", "backslashreplace") if isinstance(data, str) else data)
        except OSError as error:
            if isinstance(error, BrokenPipeError):
                raise
            raise RunDirError(f"cannot write {self}: {error_reason(error)}; name another place") from error

    def __str__(self) -> str:
        return "standard output" if is_stdout(self.path) else str(self.path)


def _opened(path: Path) -> BinaryIO:
    # A pipe without a reader is not waited for; a full one is. A descriptor is written from its present offset.
    known = descriptor_of(path)
    fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY) if known is None else os.dup(known)
    os.set_blocking(fd, True)
    os.write(fd, b"")  # refused by one that is open for reading alone
    return os.fdopen(fd, "wb")
