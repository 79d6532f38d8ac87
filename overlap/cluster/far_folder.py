"""A folder on a node for what a process there writes or reads, and pieces of any file that it has. No Ray in here."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from overlap.weights import Piece, mapped


class FarFolder:
    """``root`` need not be there yet. All of it blocks."""

    def __init__(self, root: Path) -> None:
        self._root, self._read = root, dict[int, Piece]()

    def sees(self, path: str, token: str) -> bool:
        """Whether the file has these words here, too, and others may be put beside it."""
        try:
            return Path(path).read_text(encoding="utf-8") == token and os.access(os.path.dirname(path), os.W_OK)
        except (OSError, ValueError):
            return False

    def clear(self) -> str:
        """Empty the folder; its path."""
        shutil.rmtree(self._root, ignore_errors=True)
        self._root.mkdir(0o700, parents=True)
        return str(self._root)

    def names(self) -> list[tuple[str, int]]:
        """Paths of the files in the folder, relative to it, and their sizes, bytes."""
        files = sorted(path for path in self._root.rglob("*") if path.is_file())
        return [(path.relative_to(self._root).as_posix(), path.stat().st_size) for path in files]

    def read(self, path: str, at: int, length: int) -> bytes:
        """A piece of a file, relative to the folder or not. Raises OSError, also where it is shorter."""
        return read_piece(self._root / path, at, length)

    def changed(
        self, path: str, at: int, length: int, has: bytes | None
    ) -> tuple[bytes | bytearray, bytes, bool] | None:
        """A piece of weights for somebody who has one of that digest there: what has changed in it since the last call,
        or all of it; its digest, and whether it is all of it. None for who has it. Keeps what it read.
        """
        piece = self._read[at] = Piece.after(self._read.get(at), mapped(path, at, length))
        return next(((data, piece.digest, whole) for data, whole in piece.ways(has)), None)

    def write(self, name: str, at: int, data: bytes) -> str:
        """Write a piece of a file in the folder; why that cannot be, "" where it is done."""
        try:
            write_piece(self._root / name, at, data)
        except OSError as error:
            return error.strerror or str(error)
        return ""


def read_piece(path: str | Path, at: int, length: int) -> bytes:
    """Bytes of a file. Raises OSError, also where it ends before."""
    fd = os.open(path, os.O_RDONLY)
    try:
        data = os.pread(fd, length, at)
    finally:
        os.close(fd)
    if len(data) < length:
        raise OSError(f"{path} ends at byte {at + len(data)}, not behind {at + length}")
    return data


def write_piece(path: Path, at: int, data: bytes) -> None:
    """Make the file, with the folders above it, unless it is there, and write that into it. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_and_close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o666), at, data)


def write_and_close(fd: int, at: int, data: bytes | memoryview) -> None:
    """Write all of ``data`` at that byte of a file, and close it. Raises OSError."""
    try:
        view = memoryview(data)
        while len(view):
            done = os.pwrite(fd, view, at)
            view, at = view[done:], at + done
    finally:
        os.close(fd)
