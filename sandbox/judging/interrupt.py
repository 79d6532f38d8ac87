"""Work of our own that a cancel ends: a long comparison would else keep its worker for seconds.

    with interruptible(cancel_fd, size) ──▶ a tick for every 10 ms of our own CPU time ──▶ is `cancel_fd` readable?

By a timer, so whatever computes need not ask; never for little work, so that costs nothing. What is interrupted may
stop between any two of its steps: it computes only, and holds nothing that must be given back.
"""

from __future__ import annotations

import gc
import select
import signal
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final

from sandbox.errors import Cancelled

_TICK_S: Final = 0.01
_LARGE: Final = 64 << 10  # bytes; the slowest comparison takes less than 50 ms for so many
_NOTHING: Final = nullcontext()


def cancellable(cancel_fd: int | None, size: int) -> AbstractContextManager[None]:
    """Computing on `size` bytes, in the process's main thread, raises Cancelled when `cancel_fd` becomes readable.

    One at a time. In other threads, where no signal is handled, it is not interrupted. Takes SIGVTALRM meanwhile.
    """
    if cancel_fd is None or size < _LARGE or threading.current_thread() is not threading.main_thread():
        return _NOTHING
    return _ticking(cancel_fd)


@contextmanager
def _ticking(cancel_fd: int) -> Iterator[None]:
    poller = select.poll()
    poller.register(cancel_fd, select.POLLIN)
    over, collects = False, gc.isenabled()

    def tick(*_: object) -> None:
        if not over and poller.poll(0):
            raise Cancelled("the job was cancelled while its result was looked at")

    before = signal.signal(signal.SIGVTALRM, tick)
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, _TICK_S, _TICK_S)
        try:
            yield
        finally:
            over = True
    finally:  # no tick raises here: the last may have come as the work ended
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
        if collects:
            gc.enable()
