"""Copies of weights on two machines: what was read last on the one, and what the other one has of it.

Both go by digests of pieces, never by the number of a version: a run that goes back to a checkpoint gives one twice.
"""

from __future__ import annotations

import mmap
import os
from typing import Any, NamedTuple

from overlap.weights.delta import apply, difference


def piece_digest(data: Any) -> bytes:
    """Of 16 bytes (XXH3): against faults, not against people."""
    from xxhash import xxh3_128_digest

    return bytes(xxh3_128_digest(data))


class Piece(NamedTuple):
    """A piece as it was read last; with what has changed in it since it had the digest ``base``, where that is less."""

    data: bytes
    digest: bytes
    base: bytes = b""
    changed: bytes | None = None

    @classmethod
    def after(cls, former: Piece | None, data: bytes) -> Piece:
        """Of the same place, read later."""
        digest = piece_digest(data)
        if former is None or len(former.data) != len(data):
            return cls(data, digest)
        if former.digest == digest:
            return former
        return cls(data, digest, former.digest, difference(former.data, data))

    def ways(self, has: bytes | None) -> list[tuple[bytes, bool]]:
        """What to send to somebody who has a piece of that digest there, and whether it is all of it: the second where
        the first was of no use, and nothing to who has it.
        """
        if has == self.digest:
            return []
        whole = [(self.data, True)]
        return [(self.changed, False), *whole] if self.changed is not None and has == self.base else whole


class WeightCopy:
    """Memory without a name for ``size`` bytes of weights that lie elsewhere, found at ``path``. ``digests`` has those
    of the pieces that are whole, by where they begin.
    """

    def __init__(self, size: int) -> None:
        self.size, self.digests = size, dict[int, bytes]()
        self._fd = os.memfd_create("overlap-weights", os.MFD_CLOEXEC)
        os.ftruncate(self._fd, max(size, 1))
        self._memory = memoryview(mmap.mmap(self._fd, max(size, 1)))
        self.path = f"/proc/{os.getpid()}/fd/{self._fd}"

    def fill(self, at: int, length: int, data: Any, digest: bytes, *, whole: bool) -> bool:
        """Bring a piece up to date; whether it has that digest then. One at a time."""
        self.digests.pop(at, None)
        piece = self._memory[at : at + length]
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

    def close(self) -> None:
        """Nobody finds it any more; who has it open reads on."""
        os.close(self._fd)
