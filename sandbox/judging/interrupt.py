"""Let a cancel interrupt a long computation of the judge, for example a comparison of 16 MiB.

    with cancellable(cancel_fd, size) ──▶ a timer tick per 10 ms of CPU time ──▶ is `cancel_fd` readable?

A timer is used, so the computation needs no checks, and not for small inputs, which then cost nothing. An interrupted
computation may stop between any two steps: it must hold nothing that has to be released.
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
_LARGE: Final = 64 << 10  # bytes; the slowest comparison of this many takes less than 50 ms


def cancellable(cancel_fd: int | None, size: int) -> AbstractContextManager[None]:
    """Raise Cancelled in a computation on `size` bytes when `cancel_fd` becomes readable.

    One at a time, and only in the main thread, where signals are handled. Uses SIGVTALRM.
    """
    if cancel_fd is None or size < _LARGE or threading.current_thread() is not threading.main_thread():
        return nullcontext()
    return _ticking(cancel_fd)


@contextmanager
def _ticking(cancel_fd: int) -> Iterator[None]:
    poller = select.poll()
    poller.register(cancel_fd, select.POLLIN)
    over, collects = False, gc.isenabled()

    def tick(*_: object) -> None:
        if not over and poller.poll(0):
            raise Cancelled("the job was cancelled while its result was compared")

    before = signal.signal(signal.SIGVTALRM, tick)
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, _TICK_S, _TICK_S)
        try:
            yield
        finally:
            over = True
    finally:  # a last tick may arrive as the computation ends: it must not raise here
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
        if collects:
            gc.enable()
