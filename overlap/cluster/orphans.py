"""An agent that its driver does not call has no driver any more, whatever Ray believes, and ends.

From its first call on an agent looks itself whether it is called (``uncalled``). Before that no coroutine of it runs: a
thread has to wait.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress

from overlap.clock import now
from overlap.cluster.nodes import GRACE_S, ORPHAN_S

Do = Callable[[], Awaitable[object]]


async def uncalled(last_s: Callable[[], float]) -> None:
    """Return when nobody has called for ``ORPHAN_S``. ``last_s``: when somebody did; while a call goes on that may be
    long, a time to come, which is taken back at its end: that is why nobody sleeps until then.
    """
    while (left := last_s() + ORPHAN_S - now()) > 0:
        await asyncio.sleep(min(left, ORPHAN_S))
        await asyncio.sleep(GRACE_S)  # a machine that stood still reads first what came meanwhile


class DriverWatch:
    """Ends this process, which has an agent, where nobody calls that within ``seconds``; and once it is an orphan,
    after ``close_s`` at most, in which it closes.
    """

    def __init__(self, close_s: float, seconds: float = ORPHAN_S, end: Callable[[int], object] = os._exit) -> None:
        self._close_s, self._end = close_s, end
        self._timer = threading.Timer(seconds, end, [1])
        self._timer.daemon = True
        self._timer.start()
        self._watching: asyncio.Task[None] | None = None

    def called(self, orphaned: Do, close: Do) -> None:
        """It was: from now on the agent looks itself. ``orphaned`` returns when it is one."""
        self._timer.cancel()
        self._watching = self._watching or asyncio.create_task(self._watch(orphaned, close))

    async def _watch(self, orphaned: Do, close: Do) -> None:
        await orphaned()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._close_s):
                await close()
        self._end(1)  # what is left is ended by the sandbox's own processes, and by the reaper
