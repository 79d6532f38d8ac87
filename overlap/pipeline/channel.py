"""A channel between two stages: put, take, close.

It counts the seconds that each side stood still, which tells where a pipeline is tight: items wait when the stage
behind is slow, the receiver waits when the stage before is. What bounds it are the leases: nothing is put that was not
admitted. What was put before the close is still received.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

from overlap.core.clock import now

T = TypeVar("T")


class Channel(Generic[T]):
    """Belongs to one event loop; one receiver."""

    def __init__(self) -> None:
        self.empty_s = 0.0
        """Seconds in which the receiver waited for an item."""
        self._items: deque[T] = deque()
        self._there = asyncio.Event()
        self._closed = False
        self._full_s = self._since_s = 0.0

    @property
    def full_s(self) -> float:
        """Seconds in which at least one item waited."""
        return self._full_s + (now() - self._since_s if self._items else 0.0)

    @property
    def waiting(self) -> tuple[T, ...]:
        """The items that wait; they go on waiting."""
        return tuple(self._items)

    @property
    def ended(self) -> bool:
        """Closed, and all is received."""
        return self._closed and not self._items

    def put(self, item: T) -> None:
        """Hand over one item."""
        assert not self._closed, "the channel is closed"
        if not self._items:
            self._since_s = now()
        self._items.append(item)
        self._there.set()

    def close(self) -> None:
        """No more items will come."""
        self._closed = True
        self._there.set()

    async def ready(self) -> None:
        """Wait until an item waits, or the channel has ended."""
        before = now()
        try:
            await self._there.wait()
        finally:
            self.empty_s += now() - before

    def take(self) -> T | None:
        """The item that has waited for longest; None where none waits."""
        if not self._items:
            return None
        full_s, item = self.full_s, self._items.popleft()
        if not self._items:
            self._full_s = full_s
            if not self._closed:
                self._there.clear()
        return item
