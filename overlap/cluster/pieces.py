"""Weights on their way to several nodes: each piece is put where all of them find it once, and not for longer than they
take it one after the other. No Ray in here.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from overlap.cluster.hosted import read_piece

PIECE_BYTES = 16 << 20
KEPT = 4
"""Pieces that stay: a node that is further behind than these has them put there once more."""

FILL_S = 300.0
"""A piece is on its way to a node for so long at most; whether that is there, the calls of its process say."""

Put = Callable[[bytes], Awaitable[Any]]
Ask = Callable[..., Awaitable[Any]]
Key = tuple[str, int, int]


class Pieces:
    """``put`` puts bytes where every node finds them by what it returns, for as long as that is held."""

    def __init__(self, put: Put) -> None:
        self._put, self._readers = put, 0
        self._made: OrderedDict[Key, asyncio.Task[Any]] = OrderedDict()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Somebody takes pieces; with the last one none is held any more."""
        self._readers += 1
        try:
            yield
        finally:
            self._readers -= 1
            if not self._readers:
                self._made.clear()

    async def bring(self, ask: Ask, update: int, path: str, version: int, size: int) -> str:
        """Have the agent behind ``ask`` take the memory of ``size`` bytes at ``path``; where it lies there."""
        with self.reading():
            there = str(await ask("room", update, size))
            for at in range(0, size, PIECE_BYTES):
                piece = await self.get(path, version, at, size)
                async with asyncio.timeout(FILL_S):
                    await ask("fill", update, at, piece)
        return there

    async def get(self, path: str, version: int, at: int, size: int) -> Any:
        """What ``put`` made of the piece at ``at`` of the memory of ``size`` bytes at ``path``."""
        key = path, version, at
        if key not in self._made:
            self._made[key] = asyncio.create_task(self._make(path, at, min(PIECE_BYTES, size - at)), name="put weights")
            if len(self._made) > KEPT:
                self._made.popitem(last=False)
        return await asyncio.shield(self._made[key])

    async def _make(self, path: str, at: int, length: int) -> Any:
        return await self._put(await asyncio.to_thread(read_piece, path, at, length))
