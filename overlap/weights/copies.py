"""Copies of weights on two machines: the weights read last on the one, and the pieces of them on the other.

Both go by digests of pieces, never by the number of a version: a run that goes back to a checkpoint gives one twice.

A difference between two states of a piece is bit-exact, for weights of which few words change in a step. numpy leaves
the interpreter to others meanwhile: several pieces are compared at a time by threads. Its form:

    header    changed words, bytes of gaps (both uint32)
    gaps      unchanged words before each changed one, a byte each; 255: that many, and the next byte adds to it
    values    the changed words as they are now, 2 bytes each
    tail      the last byte of a piece of odd size

Words are of 16 bits, one bfloat16 each: 3 bytes for one that changed, which are 0.2 to 1 % of them after a step of Adam
at a learning rate of 1e-6, and 2 to 5 % at 2e-5. Of float32 nearly all low halves change: that goes whole.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from overlap.core.aio import together

if TYPE_CHECKING:
    from numpy.typing import NDArray

_HEAD = struct.Struct("<II")
_WORD, _LONG = 2, 255
_BLOCK = 1 << 18  # words at a time, so that what is known of them stays in the cache

PIECE_BYTES = 16 << 20
AHEAD = 3
"""Pieces on their way at a time: one is made, one comes, one is written."""


async def in_pieces(size: int, move: Callable[[int, int], Awaitable[None]]) -> None:
    """Move ``size`` bytes, some pieces at a time: ``move`` gets where each piece begins, and its length."""
    pieces = ((at, min(PIECE_BYTES, size - at)) for at in range(0, max(1, size), PIECE_BYTES))

    async def work() -> None:
        for piece in pieces:
            await move(*piece)

    await together(*(work() for _ in range(AHEAD)))


def piece_digest(data: Any) -> bytes:
    """Return a digest of 16 bytes (XXH3): it detects faults, not attacks."""
    from xxhash import xxh3_128_digest

    return bytes(xxh3_128_digest(data))


def mapped(path: str, at: int, length: int) -> memoryview:
    """Bytes of a file, which are read as they are looked at. Raises OSError, also where it ends before."""
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size < at + length:
            raise OSError(f"{path} ends before byte {at + length}")
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


def difference(former: Any, now: Any) -> bytes | None:
    """Return the difference from ``former`` to ``now``, buffers of the same size; None when it exceeds half of that.

    Raises ValueError for buffers of different sizes.
    """
    import numpy

    old, new = memoryview(former).cast("B"), memoryview(now).cast("B")
    if len(old) != len(new):
        raise ValueError(f"a difference between {len(old)} and {len(new)} bytes")
    even = len(new) - len(new) % _WORD
    before, after = numpy.frombuffer(old[:even], numpy.uint16), numpy.frombuffer(new[:even], numpy.uint16)
    changed = _changed(before, after)
    if _HEAD.size + 3 * len(changed) > len(new) // 2:
        return None
    gaps = _gaps(changed)
    values = after[changed].tobytes()
    made = b"".join((_HEAD.pack(len(changed), len(gaps)), gaps.tobytes(), values, new[even:]))
    return made if len(made) <= len(new) // 2 else None


def apply(buffer: Any, made: Any) -> None:
    """Apply a ``difference`` to a buffer with ``former``, which has ``now`` then, in place; idempotent.

    Raises ValueError where ``made`` is no difference for a buffer of this size, before anything is written.
    """
    import numpy

    memory, data = memoryview(buffer).cast("B"), memoryview(made).cast("B")
    even = len(memory) - len(memory) % _WORD
    if len(data) < _HEAD.size:
        raise ValueError(f"a difference of {len(data)} bytes")
    count, long = _HEAD.unpack_from(data)
    gaps_end = _HEAD.size + long
    values_end = gaps_end + _WORD * count
    if values_end + len(memory) - even != len(data):
        raise ValueError(f"a difference of {len(data)} bytes that names {count} words and {long} bytes of gaps")
    gaps = numpy.frombuffer(data[_HEAD.size : gaps_end], numpy.uint8)
    ends = gaps != _LONG
    changed = numpy.cumsum(gaps + ends.astype(numpy.int64))[ends] - 1
    if len(changed) != count or (count and changed[-1] >= even // _WORD):
        raise ValueError(f"a difference for more than {len(memory)} bytes")
    numpy.frombuffer(memory[:even], numpy.uint16)[changed] = numpy.frombuffer(data[gaps_end:values_end], numpy.uint16)
    memory[even:] = data[values_end:]


def _changed(before: NDArray[Any], after: NDArray[Any]) -> NDArray[Any]:
    """Indices of the words that differ, in order: of eight at a time first, since mostly none of these does."""
    import numpy

    found: list[NDArray[Any]] = [numpy.empty(0, numpy.int64)]
    differ: NDArray[Any] = numpy.zeros(_BLOCK, numpy.bool_)
    eights = differ.view(numpy.uint64)
    for at in range(0, len(after), _BLOCK):
        count = min(_BLOCK, len(after) - at)
        differ[count:] = False
        numpy.not_equal(before[at : at + count], after[at : at + count], out=differ[:count])
        some = numpy.flatnonzero(eights)
        words = numpy.flatnonzero(eights[some].view(numpy.bool_))
        found.append((some[words >> 3] << 3) + (words & 7) + at)
    return numpy.concatenate(found)


def _gaps(changed: NDArray[Any]) -> NDArray[Any]:
    import numpy

    unchanged = numpy.diff(changed, prepend=-1) - 1
    far = numpy.flatnonzero(unchanged >= _LONG)
    times = unchanged[far] // _LONG
    unchanged[far] %= _LONG
    return numpy.insert(unchanged.astype(numpy.uint8), numpy.repeat(far, times), _LONG)
