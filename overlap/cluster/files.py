"""Files that are copied from one machine to another, in pieces of which some are on their way at a time."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from overlap.core.errors import RunDirError
from overlap.weights.copies import in_pieces

Run = Callable[..., Awaitable[Any]]
"""Calls a function somewhere: ``asyncio.to_thread``, or what does so on another machine."""


async def copy_file(
    path: Path, size: int, to: Path, *, read: Run = asyncio.to_thread, write: Run = asyncio.to_thread, where: str = ""
) -> None:
    """Copy a file; ``read`` runs a function where the file is, ``write`` at its destination, which ``where`` names in
    the error. Raises RunDirError where the copy cannot be written.
    """

    async def copy(at: int, length: int) -> None:
        piece = await read(read_piece, path, at, length)
        if fault := await write(write_piece, to, at, piece):
            raise RunDirError(f"cannot write {to}{where}: {fault}; free disk space there, or choose another place")

    await in_pieces(size, copy)


def files_in(folder: Path) -> list[tuple[str, int]]:
    """Return the paths of the files in a folder, relative to it, and their sizes, bytes."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [(path.relative_to(folder).as_posix(), path.stat().st_size) for path in files]


def read_piece(path: Path, at: int, length: int) -> bytes:
    """Read bytes of a file. Raises OSError, also where it ends before."""
    with open(path, "rb") as file:
        file.seek(at)
        data = file.read(length)
    if len(data) < length:
        raise OSError(f"{path} ends at byte {at + len(data)}, not behind {at + length}")
    return data


def write_piece(path: Path, at: int, data: bytes) -> str:
    """Make the file, with the folders above it, unless it is there, and write that into it; return why it cannot be
    written, or "": an error that an agent raises would be the node's.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o666), "wb") as file:
            file.seek(at)
            file.write(data)
    except OSError as error:
        return error.strerror or str(error)
    return ""
