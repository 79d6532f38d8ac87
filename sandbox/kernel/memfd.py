"""Anonymous memory as files: data crosses the jail's boundary without a pipe that one side could block."""

from __future__ import annotations

import fcntl
import os
from contextlib import ExitStack
from typing import Final

_SEALED: Final = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK


def make_memfd(name: str, content: bytes = b"", *, seal: bool = False) -> int:
    """Create anonymous memory as a file. Sealed, no process can change its content, and only its owner its times."""
    with ExitStack() as undo:
        undo.callback(os.close, fd := new_memfd(name))
        written = 0
        while written < len(content):  # without moving the place where a program begins to read
            written += os.pwrite(fd, memoryview(content)[written:], written)
        if seal:
            os.fchmod(fd, 0o555)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALED if seal else fcntl.F_SEAL_SEAL)
        undo.pop_all()
    return fd


def new_memfd(name: str) -> int:
    """Create an empty one, to be written and then sealed."""
    return os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)


def seal_memfd(fd: int) -> None:
    """Seal the content against changes. Does nothing when it is sealed already."""
    if fcntl.fcntl(fd, fcntl.F_GET_SEALS) != _SEALED:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALED)


def read_all(fd: int, cap: int) -> bytes:
    """Read up to `cap` bytes; a longer stream was an output violation already."""
    size = min(os.fstat(fd).st_size, cap)
    chunks, offset = [], 0
    while offset < size and (chunk := os.pread(fd, size - offset, offset)):
        chunks.append(chunk)
        offset += len(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)
