"""No call waits for ever: what its task awaits is ended, and where the loop stood still, what came meanwhile is read
first. (``asyncio.timeout`` has no such grace.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from overlap.cluster.nodes import GRACE_S, NodeSilent

T = TypeVar("T")


async def bounded(call: Awaitable[T], seconds: float) -> T:
    """What the call says. Raises NodeSilent when it has said nothing for so long, and what it raises."""
    bound = Bound(seconds)
    try:
        with bound:
            return await call
    finally:
        bound.close()


class Bound:
    """A context for one call after another, each of which may take ``seconds``. Raises NodeSilent.

    Its timer is set anew when it has run out, not by each call: a driver makes thousands of them in that time.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds, self._late = seconds, False
        self._until = float("inf")
        self._task: asyncio.Task[object] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> None:
        loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._until = loop.time() + self._seconds
        if self._timer is None:
            self._timer = loop.call_at(self._until, self._look)

    def _look(self) -> None:
        loop, self._timer = asyncio.get_running_loop(), None
        if loop.time() < self._until < float("inf"):  # another call than that which set it
            self._timer = loop.call_at(self._until, self._look)
        elif self._until < float("inf"):
            self._timer = loop.call_later(GRACE_S, self._end, self._until)

    def _end(self, until: float) -> None:
        self._timer = None
        if self._until != until:
            return self._look()
        assert self._task is not None
        self._late = True
        self._task.cancel()

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self._until = float("inf")
        if self._late:
            self._late = False
            assert self._task is not None
            if self._task.uncancel() == 0 and kind is asyncio.CancelledError:
                raise NodeSilent(f"no answer within {self._seconds:g} s") from None

    def close(self) -> None:
        """No call comes any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
