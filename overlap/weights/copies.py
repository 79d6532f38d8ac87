"""Copies of weights on two machines: the weights read last on the one, and the pieces of them on the other.

Both go by digests of pieces, never by the number of a version: a run that goes back to a checkpoint gives one twice.
"""

from __future__ import annotations

import mmap
import os
from typing import Any, NamedTuple

from overlap.weights.delta import apply, difference


def piece_digest(data: Any) -> bytes:
    """Return a digest of 16 bytes (XXH3): it detects faults, not attacks."""
    from xxhash import xxh3_128_digest

    return bytes(xxh3_128_digest(data))


def mapped(path: str, at: int, length: int) -> memoryview:
    """Bytes of a file, which are read as they are looked at. Raises OSError."""
    with open(path, "rb") as file:
        return memoryview(mmap.mmap(file.fileno(), at + length, prot=mmap.PROT_READ))[at:]


class Piece(NamedTuple):
    """A piece as it was read last, with the difference since it had the digest ``base``, where that is smaller."""

    data: bytearray
    digest: bytes
    base: bytes = b""
    changed: bytes | None = None

    @classmethod
    def after(cls, former: Piece | None, now: Any) -> Piece:
        """Make the piece of the same place, read later, in the memory of ``former``. The digest is of this copy: the
        source may change meanwhile.
        """
        if former is None or len(former.data) != len(now):
            copy = bytearray(now)
            return cls(copy, piece_digest(copy))
        if (changed := difference(former.data, now)) is None:
            former.data[:] = now
        else:
            apply(former.data, changed)
        digest = piece_digest(former.data)
        return former if digest == former.digest else cls(former.data, digest, former.digest, changed)

    def ways(self, has: bytes | None) -> list[tuple[bytes | bytearray, bool]]:
        """Return what to send to a receiver whose piece has digest ``has``, each with whether it is the whole piece:
        the second where the first failed, nothing to a receiver that has this piece.
        """
        if has == self.digest:
            return []
        whole: list[tuple[bytes | bytearray, bool]] = [(self.data, True)]
        return [(self.changed, False), *whole] if self.changed is not None and has == self.base else whole


class WeightMemory:
    """``size`` bytes of memory without a name (a memfd), so nothing can be left behind. A process of this machine opens
    it by ``path``.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._fd = os.memfd_create("overlap-weights", os.MFD_CLOEXEC)
        os.ftruncate(self._fd, max(size, 1))
        self.memory = memoryview(mmap.mmap(self._fd, max(size, 1)))
        self.path = f"/proc/{os.getpid()}/fd/{self._fd}"

    def close(self) -> None:
        """Close the memory: no process can open it any more; a process that has it open can still read it."""
        os.close(self._fd)


class WeightCopy(WeightMemory):
    """Memory for a copy of weights. ``digests`` has the digests of the pieces that are whole, by their offset."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.digests = dict[int, bytes]()

    def fill(self, at: int, length: int, data: Any, digest: bytes, *, whole: bool) -> bool:
        """Update a piece; return whether it has that digest then. Each piece one at a time."""
        self.digests.pop(at, None)
        piece = self.memory[at : at + length]
        try:
            if whole:
                piece[:] = memoryview(data).cast("B")
            else:
                apply(piece, data)
        except ValueError:
            return False
        if piece_digest(piece) != digest:
            return False
        self.digests[at] = digest
        return True
