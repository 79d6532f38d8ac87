"""Weights between two machines: of each piece the difference where the other has the piece before, else all of it.

Each piece is read and compared once for all machines, and held where these find it while one of them takes pieces.
What was read last stays in this process: one copy of the weights, and what changed in it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from overlap.core.aio import shielded_thread
from overlap.weights.copies import Piece, WeightCopy, in_pieces, mapped

KEPT = 4
"""Pieces that stay: for a machine that is further behind than these they are put there once more."""
INLINE_BYTES = 64 << 10
"""Bytes up to which a difference is sent in the call itself."""

Put = Callable[[bytes | bytearray], Awaitable[Any]]
Ask = Callable[..., Awaitable[Any]]
Key = tuple[str, int, int]


class Brought(NamedTuple):
    """Path of the weights on a machine, bytes sent there, and pieces sent whole because the difference was wrong."""

    path: str
    sent: int
    wrong: int


class Pieces:
    """``put`` stores bytes and returns a reference by which every machine reads them, for as long as it is held."""

    def __init__(self, put: Put) -> None:
        self._put, self._readers, self._round = put, 0, 0
        self._read: dict[int, tuple[Key, asyncio.Task[Piece]]] = {}
        self._made: OrderedDict[tuple[int, bytes, bool], asyncio.Task[Any]] = OrderedDict()

    async def bring(self, ask: Ask, update: int, path: str, version: int, size: int) -> Brought:
        """Have the ``WeightEndpoint`` that ``ask`` calls take memory of ``size`` bytes at ``path``. Raises as that, and
        OSError where it cannot be read. Machines may be brought one version side by side, not two: each piece is read
        into the memory of the last one.
        """
        sent = wrong = 0

        async def move(at: int, length: int) -> None:
            nonlocal sent, wrong
            piece = await self._piece((path, version, self._round), at, length)
            for data, whole in piece.ways(has.get(at)):
                small = not whole and len(data) <= INLINE_BYTES
                put = data if small else await self._where((at, piece.digest, whole), data)
                right = await ask("fill", update, at, length, put, piece.digest, whole)
                sent += len(data)
                if right:
                    break
                wrong += 1

        self._readers += 1
        try:
            there, has = await ask("room", update, size)
            await in_pieces(size, move)
        finally:
            self._readers -= 1
            if not self._readers:  # the next one reads anew
                self._made.clear()
                self._round += 1
        return Brought(str(there), sent, wrong)

    async def _piece(self, key: Key, at: int, length: int) -> Piece:
        known, task = self._read.get(at, (None, None))
        if known != key or task is None or (task.done() and (task.cancelled() or task.exception())):
            task = asyncio.create_task(_next(key[0], at, length, task), name="read weights")
            self._read[at] = key, task
        return await asyncio.shield(task)

    async def _where(self, key: tuple[int, bytes, bool], data: bytes | bytearray) -> Any:
        if key not in self._made:
            self._made[key] = asyncio.ensure_future(self._put(data))
            if len(self._made) > KEPT:
                self._made.popitem(last=False)
        return await asyncio.shield(self._made[key])


async def _next(path: str, at: int, length: int, before: asyncio.Task[Piece] | None) -> Piece:
    if before is not None:
        await asyncio.wait([before])
    former = None if before is None or before.cancelled() or before.exception() else before.result()
    return await asyncio.to_thread(lambda: Piece.after(former, mapped(path, at, length)))


class WeightEndpoint:
    """Weights on this machine, for a driver on another one that calls these methods: ``room`` and ``fill`` take some
    in, ``changed`` hands some out.
    """

    def __init__(self) -> None:
        self._weights: WeightCopy | None = None
        self._update, self._filling = 0, asyncio.Lock()
        self._pieces = dict[int, Piece]()

    async def room(self, update: int, size: int) -> tuple[str, dict[int, bytes]]:
        """Keep memory for ``size`` bytes of weights, also for the next update; return the path by which a process here
        opens it, and digests of the pieces in it, by their offset.

        Updates are numbered as they come: calls may overtake each other, and one for an earlier update does nothing.
        """
        async with self._filling:
            if update < self._update:
                return "", {}
            if self._weights is None or self._weights.size != size:
                self._free()
                self._weights = WeightCopy(size)
            self._update = update
            return self._weights.path, self._weights.digests.copy()

    async def fill(self, update: int, at: int, length: int, data: Any, digest: bytes, whole: bool) -> bool:
        """Write a piece of the weights, or the difference in it; return whether it has that digest then. Raises OSError
        where the whole piece was sent, and has not.
        """
        async with self._filling:
            if update != self._update or self._weights is None:
                return False
            right = await shielded_thread(self._weights.fill, at, length, data, digest, whole=whole)
        if whole and not right:
            raise OSError(f"weights come other than they were sent: bytes from {at}")
        return right

    async def changed(
        self, path: str, at: int, length: int, has: bytes | None
    ) -> tuple[bytes | bytearray, bytes, bool] | None:
        """Return a piece of the weights here for a receiver whose piece has digest ``has``: the difference since the
        last call, or the whole piece; its digest; and whether it is whole. None for a receiver that has it. Keeps what
        it read.
        """
        read = self._pieces
        piece = read[at] = await asyncio.to_thread(lambda: Piece.after(read.get(at), mapped(path, at, length)))
        return next(((data, piece.digest, whole) for data, whole in piece.ways(has)), None)

    async def close(self) -> None:
        """Free the memory."""
        async with self._filling:
            self._free()

    def _free(self) -> None:
        if self._weights is not None:
            self._weights.close()
            self._weights = None
