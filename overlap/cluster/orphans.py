"""An agent that was made, and that its driver never called: it has no driver any more, whatever Ray believes, and ends.

From its first call on an agent looks itself whether it is called (``orphaned``). Before that no coroutine of it runs: a
thread has to wait.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from overlap.cluster.nodes import ORPHAN_S


class Greeted:
    """Ends this process where it is not called within ``seconds``."""

    def __init__(self, seconds: float = ORPHAN_S, end: Callable[[int], object] = os._exit) -> None:
        self._timer = threading.Timer(seconds, end, [1])
        self._timer.daemon = True
        self._timer.start()

    def called(self) -> None:
        """It was: from now on the agent looks itself."""
        self._timer.cancel()
