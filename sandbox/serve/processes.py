"""Several server processes behind one port: each has a pool of its own, and the kernel spreads the connections.

    parent ── fork ──▶ N processes that accept from the same socket; one that dies is replaced

waits for its children and for signals, which it hands on; a child ends with its parent, also by SIGKILL
"""

from __future__ import annotations

import argparse
import asyncio
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
from sandbox.pool import cores
from sandbox.serve.serving import Serving, say_ready
from sandbox.serve.shared_counts import SharedCounts

_RESTART_S: Final = 1.0
_LOOK_S: Final = 0.1
"""Between looks for a signal while the processes start."""
_MARGIN_S: Final = 10.0
"""For the end of pools, after the deadline of the requests."""
_HANDED_ON: Final = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)


def serve_in_processes(listener: socket.socket, options: argparse.Namespace) -> int:
    """Serve until a signal ends it, and return the exit code. Raises SandboxError where nothing can be judged here."""
    return _Processes(listener, options).run()


class _Processes:
    def __init__(self, listener: socket.socket, options: argparse.Namespace) -> None:
        self.listener, self.options = listener, options
        available = min(options.workers or cores(), cores())
        if options.processes > available:
            raise SandboxError(f"--processes {options.processes}: each has a worker of its own, and only {available} "
                               "are there: use fewer processes")  # fmt: skip
        self.shared = SharedCounts(options.processes)
        share, more = divmod(available, options.processes)
        self.workers = [share + (row < more) for row in range(options.processes)]
        self.children: dict[int, int] = {}
        """Rows by pid."""
        self.asked = 0
        """The signal that ends it."""

    def run(self) -> int:
        signal.pthread_sigmask(signal.SIG_BLOCK, (*_HANDED_ON, signal.SIGCHLD))
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
        return 0 if self.asked == signal.SIGTERM else 128 + self.asked

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
            if asked := signal.sigtimedwait(_HANDED_ON, 0):
                self.asked = asked.si_signo
        os.close(reads)
        if self.asked:
            return
        if len(tiers) < len(self.workers):
            raise SandboxError("a server process could not start")
        say_ready(self.listener, sum(self.workers), tiers[:1].decode())

    def _attend(self) -> None:
        """Wait for one signal, and act on it."""
        number = signal.sigwait((*_HANDED_ON, signal.SIGCHLD))
        if number != signal.SIGCHLD:
            self.asked = number
            return
        for row, code in self._reap():
            print(f"sandbox: a server process ended (code {code}), and is started again", file=sys.stderr, flush=True)
            time.sleep(_RESTART_S)
            self._fork(row)

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
        """Hand the signal on, and wait for the children; those that take too long are killed."""
        self._kill(self.asked or signal.SIGTERM)
        end = time.monotonic() + self.options.drain_s + _MARGIN_S
        while self.children and time.monotonic() < end:
            self._reap()
            if signal.sigtimedwait((*_HANDED_ON,), 0.02) is not None:
                self._kill(signal.SIGINT)  # a second request: cut what runs
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
