"""A named channel between two stages: put, receive, close.

It counts items, those that wait, and the seconds that each side stood still, which tells where a pipeline is tight:
items wait when the stage behind is slow, the receiver waits when the stage before is. What bounds it are the leases:
nothing is put that was not admitted. A channel ends by being closed: what was put before is still received, then
iteration stops.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from overlap.clock import now

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ChannelStats:
    """Items passed, items waiting, and seconds since the channel was opened: with an item waiting, and without one
    while the receiver waited.
    """

    name: str
    items: int
    waiting: int
    full_s: float
    empty_s: float


class Channel(Generic[T]):
    """Belongs to one event loop; one receiver."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._items: deque[T] = deque()
        self._there = asyncio.Event()
        self._closed = False
        self._passed = 0
        self._full_s = self._empty_s = self._since_s = 0.0

    def put(self, item: T) -> None:
        """Hand over one item. Raises RuntimeError once closed."""
        if self._closed:
            raise RuntimeError(f"the channel {self.name!r} is closed")
        if not self._items:
            self._since_s = now()
        self._items.append(item)
        self._there.set()

    def close(self) -> None:
        """No more items will come: the receiver ends when it has received what was put."""
        self._closed = True
        self._there.set()

    def __len__(self) -> int:
        """Items that wait."""
        return len(self._items)

    @property
    def ended(self) -> bool:
        """Closed, and all is received."""
        return self._closed and not self._items

    async def ready(self) -> None:
        """Waits until an item waits, or the channel has ended."""
        before = now()
        try:
            await self._there.wait()
        finally:
            self._empty_s += now() - before

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        await self.ready()
        if not self._items:
            raise StopAsyncIteration
        item = self._items.popleft()
        self._passed += 1
        if not self._items:
            self._full_s += now() - self._since_s
            if not self._closed:
                self._there.clear()
        return item

    @property
    def stats(self) -> ChannelStats:
        waiting_s = now() - self._since_s if self._items else 0.0
        return ChannelStats(self.name, self._passed, len(self._items), self._full_s + waiting_s, self._empty_s)
