"""An event loop on a virtual clock, where hours pass in seconds.

    run_virtual(main())    # as asyncio.run; the clock begins at 0 and moves, to the next timer, when nothing can run

For schedules that are studied and for tests that may not depend on speed. Only what waits by the loop's own timers may
run on it: one that waits for a thread, a socket or a process has nothing to wake it here, and raises Deadlock.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Deadlock(RuntimeError):
    """Every task waits, and no timer is set."""


class _Selector(selectors.SelectSelector):
    """Waits for nothing: hands the time that would have been waited to its loop."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise Deadlock("nothing can run and no timer is set: a task waits for what is outside of the virtual clock")
        self.now += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """See the module."""

    def __init__(self) -> None:
        self._clock = _Selector()
        super().__init__(self._clock)

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._clock.now


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """The result of ``main`` on a new virtual clock. Raises what it raises, or Deadlock."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
