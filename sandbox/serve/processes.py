"""Several server processes behind one port: each has a pool of its own, and the kernel spreads the connections.

    parent ── fork ──▶ N processes that accept from the same socket; one that dies is replaced after a second

waits for its children and for signals, for which it asks them to end; a child ends with its parent, also by SIGKILL
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NoReturn

from sandbox.errors import SandboxError
from sandbox.kernel import linux
from sandbox.pool.quotas import cores
from sandbox.serve.metrics import in_hand
from sandbox.serve.serving import Serving, heeded_signals, say_ending, say_ready, server_exit_code
from sandbox.serve.shared_counts import SharedCounts
from sandbox.terminal import ONE_WISH_S, SIGNALS

_RESTART_S: Final = 1.0
_LOOK_S: Final = 0.1
"""Between looks for a signal while the processes start."""
_REAP_S: Final = 1.0
"""Between looks for children that have ended: the signal of an end may go to a thread that ignores it."""
_MARGIN_S: Final = 10.0
"""Seconds for the end of pools, after the deadline of the requests."""


def serve_in_processes(listener: socket.socket, options: argparse.Namespace) -> int:
    """Serve until a signal ends it, and return the exit code. Raises SandboxError where nothing can be judged here."""
    return _Processes(listener, options).run()


class _Processes:
    def __init__(self, listener: socket.socket, options: argparse.Namespace) -> None:
        self.listener, self.options = listener, options
        self.signals = heeded_signals()
        available = min(options.workers or cores(), cores())
        if options.processes > available:
            raise SandboxError(f"--processes {options.processes}: each has a worker of its own, and only {available} "
                               "are there: use fewer processes")  # fmt: skip
        self.shared = SharedCounts(options.processes)
        share, more = divmod(available, options.processes)
        self.workers = [share + (row < more) for row in range(options.processes)]
        self.children: dict[int, int] = {}
        """Rows by pid."""
        self.due: dict[int, float] = {}
        """Times at which to start ended processes again, by row."""
        self.asked = self.cut = 0
        """The signal that ends it, and the one that cuts what still ran."""

    def run(self) -> int:
        signal.pthread_sigmask(signal.SIG_BLOCK, (*SIGNALS, signal.SIGCHLD))
        reads, writes = os.pipe()
        for row in range(len(self.workers)):
            self._fork(row, writes)
        os.close(writes)
        try:
            self._await_ready(reads)
            while not self.asked:
                self._attend()
        finally:
            self._end()
        return server_exit_code(self.asked, self.cut)

    def _fork(self, row: int, writes: int | None = None) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        if pid := os.fork():
            self.children[pid] = row
            return
        self._be_child(row, parent, writes)

    def _be_child(self, row: int, parent: int, writes: int | None) -> NoReturn:
        code = 1
        try:
            os.setpgid(0, 0)  # Ctrl-C is the parent's, which asks each of them once
            linux.die_with_parent(parent)
            self.shared.row = row
            ready: Callable[[str], None] = (lambda tier: None) if writes is None else _tell(writes)
            code = self._serve(row, ready)
        except KeyboardInterrupt:
            code = 130
        finally:
            os._exit(code)

    def _serve(self, row: int, ready: Callable[[str], None]) -> int:
        try:
            return asyncio.run(
                Serving(self.listener, self.options, workers=self.workers[row], shared=self.shared, ready=ready).run()
            )
        except (SandboxError, OSError) as error:
            print(f"sandbox: error: {error}", file=sys.stderr, flush=True)
            return 2

    def _await_ready(self, reads: int) -> None:
        """Wait until each process answers, one fails, or a signal comes. Raises SandboxError."""
        tiers, ended = b"", False
        while not ended and not self.asked:  # it ends when all have closed their end: they answer, or have failed
            if select.select([reads], [], [], _LOOK_S)[0]:
                tiers += (read := os.read(reads, 1))
                ended = not read
            if asked := signal.sigtimedwait(self.signals, 0):
                self.asked = asked.si_signo
        os.close(reads)
        if self.asked:
            return
        if len(tiers) < len(self.workers):
            raise SandboxError("a server process could not start")
        say_ready(self.listener, sum(self.workers), tiers[:1].decode())

    def _attend(self) -> None:
        """Wait for a signal, or until a process is to be started again, and act on it; returns soon in any case."""
        number = self._wait(min(self.due.values(), default=math.inf))
        if number in self.signals:
            self.asked = number
            return
        for row, code in self._reap():
            print(f"sandbox: a server process ended (code {code}), and is started again", file=sys.stderr, flush=True)
            self.due[row] = time.monotonic() + _RESTART_S
        for row in [row for row, due in self.due.items() if due <= time.monotonic()]:
            del self.due[row]
            self._fork(row)

    def _wait(self, until: float) -> int:
        """The number of the next signal, that of a child's end included; 0 where none came in time, or for _REAP_S."""
        left = min(_REAP_S, max(0.0, until - time.monotonic()))
        got = signal.sigtimedwait((*self.signals, signal.SIGCHLD), left)
        return got.si_signo if got else 0

    def _reap(self) -> list[tuple[int, int]]:
        """Rows and exit codes of the children that have ended."""
        ended = []
        for pid in list(self.children):
            with suppress(ChildProcessError):
                found, status = os.waitpid(pid, os.WNOHANG)
                if found:
                    ended.append((self.children.pop(pid), os.waitstatus_to_exitcode(status)))
        return ended

    def _end(self) -> None:
        """Ask the children to end, and wait for them; a child that takes too long is killed."""
        self._kill(signal.SIGHUP if self.asked == signal.SIGHUP else signal.SIGTERM)
        start = time.monotonic()
        end, told = start + self.options.drain_s + _MARGIN_S, not self.asked
        while self.children and time.monotonic() < end:
            number = self._wait(end if told else start + ONE_WISH_S)
            self._reap()
            late = time.monotonic() - start > ONE_WISH_S
            if late and self.children and not told:  # they have counted what they wait for
                say_ending(self.asked, in_hand(self.shared), self.options.drain_s)
                told = True
            if number == signal.SIGHUP or (number in self.signals and late):
                self.cut = self.cut or number
                self._kill(signal.SIGHUP)
                end = min(end, time.monotonic() + _MARGIN_S)
        if not told:
            say_ending(self.asked, 0, self.options.drain_s)
        self._kill(signal.SIGKILL)

    def _kill(self, number: int) -> None:
        for pid in self.children:
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def _tell(writes: int) -> Callable[[str], None]:
    def ready(tier: str) -> None:
        os.write(writes, tier.encode())
        os.close(writes)

    return ready
