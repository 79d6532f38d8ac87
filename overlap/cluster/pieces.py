"""Weights on their way to nodes: of each piece what has changed where the node has the one before, else all of it.

Each is read and compared once for all nodes, and held where these find it for as long as somebody takes some. What was
read last stays in this process: one copy of the weights, and what changed in it. No Ray in here.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from overlap.aio import together
from overlap.cluster.nodes import NodeLost
from overlap.weights import Piece, mapped

PIECE_BYTES = 16 << 20
AHEAD = 3
"""Pieces on their way to a node at a time: one is compared, one comes, one is written."""
KEPT = 4
"""Pieces that stay: for a node that is further behind than these they are put there once more."""
INLINE_BYTES = 64 << 10  # Ray carries so little in the call itself
FILL_S = 300.0
"""A piece is on its way to a node for so long at most; whether that is there, the calls of its process say."""

Put = Callable[[bytes | bytearray], Awaitable[Any]]
Ask = Callable[..., Awaitable[Any]]
Key = tuple[str, int, int, int]


class Brought(NamedTuple):
    """Where weights lie on a node, bytes that went there, pieces that went whole since what had changed was wrong."""

    path: str
    sent: int
    wrong: int


class Pieces:
    """``put`` puts bytes where every node finds them by what it returns, for as long as that is held."""

    def __init__(self, put: Put) -> None:
        self._put, self._readers, self._round = put, 0, 0
        self._read: dict[int, tuple[Key, asyncio.Task[Piece]]] = {}
        self._made: OrderedDict[tuple[int, bytes, bool], asyncio.Task[Any]] = OrderedDict()

    async def bring(self, ask: Ask, update: int, path: str, version: int, size: int) -> Brought:
        """Have the agent of ``ask`` take memory of ``size`` bytes at ``path``. Raises NodeLost where it does not."""
        sent = wrong = 0
        starts = iter(range(0, size, PIECE_BYTES))

        async def work() -> None:
            nonlocal sent, wrong
            for at in starts:
                piece = await self._piece((path, version, size, self._round), at)
                for data, whole in piece.ways(has.get(at)):
                    small = not whole and len(data) <= INLINE_BYTES
                    put = data if small else await self._where((at, piece.digest, whole), data)
                    async with asyncio.timeout(FILL_S):
                        right = await ask("fill", update, at, len(piece.data), put, piece.digest, whole)
                    sent += len(data)
                    if right:
                        break
                    if whole:
                        raise NodeLost(f"weights come there other than they are: bytes from {at} of version {version}")
                    wrong += 1

        self._readers += 1
        try:
            there, has = await ask("room", update, size)
            await together(*(work() for _ in range(AHEAD)))
        finally:
            self._readers -= 1
            if not self._readers:  # the next one reads anew
                self._made.clear()
                self._round += 1
        return Brought(str(there), sent, wrong)

    async def _piece(self, key: Key, at: int) -> Piece:
        known, task = self._read.get(at, (None, None))
        if known != key or task is None or (task.done() and (task.cancelled() or task.exception())):
            task = asyncio.create_task(_next(key, at, task), name="read weights")
            self._read[at] = key, task
        return await asyncio.shield(task)

    async def _where(self, key: tuple[int, bytes, bool], data: bytes | bytearray) -> Any:
        if key not in self._made:
            self._made[key] = asyncio.ensure_future(self._put(data))
            if len(self._made) > KEPT:
                self._made.popitem(last=False)
        return await asyncio.shield(self._made[key])


async def _next(key: Key, at: int, before: asyncio.Task[Piece] | None) -> Piece:
    path, _, size, _ = key
    if before is not None:
        await asyncio.wait([before])
    former = None if before is None or before.cancelled() or before.exception() else before.result()
    return await asyncio.to_thread(lambda: Piece.after(former, mapped(path, at, min(PIECE_BYTES, size - at))))
