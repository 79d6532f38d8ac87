"""An agent that its driver does not call has no driver any more, whatever Ray believes, and ends.

From its first call on an agent looks itself whether it is called (``uncalled``). Before that no coroutine of it runs: a
thread has to wait.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable

from overlap.clock import now
from overlap.cluster.nodes import GRACE_S, ORPHAN_S


async def uncalled(last_s: Callable[[], float]) -> None:
    """Return when nobody has called for ``ORPHAN_S``. ``last_s``: when somebody did; while a call goes on that may be
    long, a time to come, which is taken back at its end: that is why nobody sleeps until then.
    """
    while (left := last_s() + ORPHAN_S - now()) > 0:
        await asyncio.sleep(min(left, ORPHAN_S))
        await asyncio.sleep(GRACE_S)  # a machine that stood still reads first what came meanwhile


class Greeted:
    """Ends this process where it is not called within ``seconds``."""

    def __init__(self, seconds: float = ORPHAN_S, end: Callable[[int], object] = os._exit) -> None:
        self._timer = threading.Timer(seconds, end, [1])
        self._timer.daemon = True
        self._timer.start()

    def called(self) -> None:
        """It was: from now on the agent looks itself."""
        self._timer.cancel()
