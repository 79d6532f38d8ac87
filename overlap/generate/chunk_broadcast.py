"""One update in chunks, read by several engines: the next chunk is made when each of them has loaded the last one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from overlap.core import WeightUpdate
from overlap.core.errors import EngineError

Chunk = Mapping[str, Any]


@asynccontextmanager
async def broadcast_chunks(
    update: WeightUpdate, readers: int
) -> AsyncIterator[Sequence[AbstractContextManager[WeightUpdate]]]:
    """Share ``update`` among readers; a reader that leaves the context of its share is not waited for."""
    if update.chunks is None:
        yield [contextlib.nullcontext(update)] * readers
        return
    made = _Broadcast(update.chunks, readers)
    try:
        yield [made.share(update, reader) for reader in range(readers)]
    finally:
        await made.close()


class _Broadcast:
    def __init__(self, chunks: Callable[[], AsyncGenerator[Chunk, None]], readers: int) -> None:
        self._source = chunks()
        self._reading, self._ready, self._begun = set(range(readers)), set[int](), set[int]()
        self._begins = asyncio.Event()
        """Set when the next chunk begins to be made, which is then in ``_drawing``."""
        self._drawing: asyncio.Future[Chunk | None] | None = None

    @contextmanager
    def share(self, update: WeightUpdate, reader: int) -> Iterator[WeightUpdate]:
        try:
            yield replace(update, chunks=partial(self._read, reader))
        finally:
            self._reading.discard(reader)
            self._ready.discard(reader)
            self._draw_when_all_are_ready()

    async def _read(self, reader: int) -> AsyncGenerator[Chunk, None]:
        if reader in self._begun:
            raise EngineError("the other engines have gone on: these weights can be read once")
        self._begun.add(reader)
        while True:
            begins = self._begins
            self._ready.add(reader)
            self._draw_when_all_are_ready()
            await begins.wait()
            assert self._drawing is not None
            chunk = await asyncio.shield(self._drawing)
            if chunk is None:
                return
            yield chunk

    def _draw_when_all_are_ready(self) -> None:
        if self._reading and self._ready == self._reading:
            self._ready = set()
            self._drawing = asyncio.ensure_future(anext(self._source, None))
            self._drawing.add_done_callback(
                lambda done: done.cancelled() or done.exception()
            )  # no caller need await it
            begins, self._begins = self._begins, asyncio.Event()
            begins.set()

    async def close(self) -> None:
        if self._drawing is not None:
            self._drawing.cancel()
            await asyncio.gather(self._drawing, return_exceptions=True)
        await self._source.aclose()
