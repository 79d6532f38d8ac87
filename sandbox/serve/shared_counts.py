"""Numbers of several server processes, so that each can report those of all.

Each process has a row of memory that it shares with the others, and writes its numbers there as text; a row that is
being written is left out.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from collections.abc import Iterator
from typing import Final

_ROW_BYTES: Final = 64 << 10
_HEAD: Final = struct.Struct("<II")


class SharedCounts:
    """Made before the processes are forked; each sets `row` to its own."""

    def __init__(self, rows: int = 1) -> None:
        self.rows, self.row = rows, 0
        self._memory = mmap.mmap(-1, rows * _ROW_BYTES)

    def write(self, data: bytes) -> None:
        """Make the numbers of this process known."""
        if len(data) + _HEAD.size <= _ROW_BYTES:
            start = self.row * _ROW_BYTES
            packed = _HEAD.pack(len(data), zlib.crc32(data)) + data
            self._memory[start : start + len(packed)] = packed

    def texts(self) -> Iterator[str]:
        """The numbers of each process."""
        for start in range(0, self.rows * _ROW_BYTES, _ROW_BYTES):
            length, checksum = _HEAD.unpack(self._memory[start : start + _HEAD.size])
            data = self._memory[start + _HEAD.size : start + _HEAD.size + min(length, _ROW_BYTES)]
            if length and zlib.crc32(data) == checksum:
                yield data.decode()
