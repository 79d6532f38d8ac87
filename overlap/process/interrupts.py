"""Ctrl-C, SIGTERM and a closed terminal: the first signal ends the run in order, the second one at once, except in an
interactive interpreter (a REPL, IPython, a notebook), which would lose all that it holds.

Python calls signal handlers in the main thread only, so elsewhere there is nothing to catch.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SAME_S = 0.3  # ``timeout`` and a shell that ends send their signal twice: both count as one


class Interrupts:
    """The signals received. Inside ``run`` a signal becomes a cancellation; elsewhere it raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self._number = 0
        self._at = 0.0
        self._cancel: Callable[[], object] | None = None
        self._again: Callable[[], bool] | None = None

    def check(self) -> None:
        """Raise KeyboardInterrupt with the signal's number if one was received: its exception may be lost in a
        callback.
        """
        if self._number:
            raise KeyboardInterrupt(self._number)

    async def run(self, work: Callable[[], Awaitable[None]], again: Callable[[], bool] | None = None) -> None:
        """Await ``work()``; a signal cancels it, which becomes KeyboardInterrupt when it has ended.

        A second signal calls ``again`` in its handler, which returns True when it has given up something that takes
        long, so that the orderly end continues.
        """
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        before = self._cancel
        self._cancel, self._again = lambda: loop.call_soon_threadsafe(task.cancel), again
        try:
            self.check()  # not before: one that comes between would be missed by a loop in another thread
            await work()
        except asyncio.CancelledError:
            if self._number:
                raise KeyboardInterrupt(self._number) from None  # the state of the work does not matter
            raise
        finally:
            self._cancel, self._again = before, None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let a thread wait for ``run`` in another thread: a signal before or after ``run`` raises nothing inside, and
        is left to ``check``.
        """
        self._cancel = lambda: None
        try:
            yield
        finally:
            self._cancel = None

    def receive(self, number: int, frame: FrameType | None) -> None:
        """The signal handler."""
        first, self._number = not self._number, self._number or number
        at = time.monotonic()
        if not first:
            skipped = at - self._at > _SAME_S and self._again is not None and self._again()
            if at - self._at > _SAME_S and not skipped and not hasattr(sys, "ps1"):
                os._exit(128 + number)  # the reaper kills and removes what is left
            self._at = at
            return
        self._at = at
        if self._cancel is None:
            raise KeyboardInterrupt(number)
        self._cancel()


@contextmanager
def handle_interrupts() -> Iterator[Interrupts]:
    """Handle signals inside; afterwards they are handled as before. SIGHUP stays ignored where it was (nohup).

    Nested in another one, raises KeyboardInterrupt for a signal which that one received and whose exception was lost.
    """
    interrupts = Interrupts()
    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, interrupts.receive)
    try:
        for handler in before.values():
            if isinstance(outer := getattr(handler, "__self__", None), Interrupts):
                outer.check()
        yield interrupts
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def import_whole(*modules: str) -> None:
    """Import modules whose import must not be broken off: NumPy and torch cannot be imported again after that. A signal
    that comes meanwhile raises KeyboardInterrupt afterwards.
    """
    with handle_interrupts() as interrupts:
        with interrupts.held():
            for name in modules:
                import_module(name)
        interrupts.check()


def exit_code(interrupt: KeyboardInterrupt) -> int:
    """Exit code of an interrupted program, as shells have it: 130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP."""
    return 128 + int(interrupt.args[0] if interrupt.args else signal.SIGINT)
