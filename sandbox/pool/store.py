"""The problems that a supervisor holds: each is written and sent once, and dropped when it was not used for long.

    Store.hold ── one thread: write, send ──▶ ReceivedProblems.find ──▶ a worker, with each job of the problem

consumes  problems, known by the identity of their texts      produces  digest and size, while they are held
waits for its thread, and the thread for the supervisor's socket; woken by either; ends with `close`

A job names its problem by the digest. Problems of current jobs are held on both sides, however long others wait.
"""

from __future__ import annotations

import asyncio
import errno
import resource
import socket
import sys
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from typing import Any, Final

from sandbox.core.nouns import MIB, Case
from sandbox.core.problem import Problem
from sandbox.errors import ProblemLost, SandboxError
from sandbox.kernel import linux
from sandbox.pool.problem_memfd import ProblemHandle, Written, write

KEPT_MAX: Final = 1024
_OWN_FILES: Final = 64
_WORKER_FILES: Final = 8
"""Descriptors that a supervisor has for itself, with the descriptors that arrive while others go, and for a worker."""
KEPT_BYTES_MAX: Final = 256 * MIB
_SEND_S: Final = 60.0  # a supervisor that is alive takes a descriptor at once, when it has started
_MESSAGE_MAX: Final = 256
_SMALL: Final = tuple(item.name for item in fields(Problem) if item.name != "cases")
_OF_A_CASE: Final = tuple(item.name for item in fields(Case))


def held_most(workers: int) -> int:
    """Return how many problems current jobs may hold; as many again are kept beside them. Each takes a descriptor."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)  # the supervisor raises its own limit as far as it may
    if most == resource.RLIM_INFINITY:
        return sys.maxsize
    return max(1, (most - _OWN_FILES - _WORKER_FILES * workers) // 2)


@dataclass(slots=True, eq=False)
class _Entry:
    problem: Problem
    """References that keep the identities in use valid."""
    written: asyncio.Future[Written]
    holders: int = 0


class Store:
    """The caller's side."""

    def __init__(
        self,
        sock: socket.socket,
        loop: asyncio.AbstractEventLoop,
        *,
        kept_max: int = KEPT_MAX,
        kept_bytes_max: int = KEPT_BYTES_MAX,
    ) -> None:
        """Takes ownership of `sock`. Raises OSError when no thread can be started."""
        self.kept_max, self.kept_bytes_max = kept_max, kept_bytes_max
        self.kept_bytes = 0
        self.written = 0
        """Problems written so far."""
        self._loop = loop
        self._sock = sock
        self._sock.settimeout(_SEND_S)
        self._closed = False
        self._entries: OrderedDict[tuple[Any, ...], _Entry] = OrderedDict()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sandbox-problems")
        try:
            self._thread.submit(int)  # the thread is there from here on
        except RuntimeError as error:
            raise OSError(errno.EAGAIN, str(error)) from error
        self._given: Counter[str] = Counter()
        """Entries by digest: of two problems with equal texts one is sent. Used by the thread alone."""
        self._lost: set[str] = set()
        """Problems that were sent and did not arrive. Used by the thread alone."""

    @asynccontextmanager
    async def hold(self, problem: Problem) -> AsyncIterator[Written]:
        """Hold a problem at the supervisor.

        Raises ConnectionError when the supervisor is gone, SandboxError. ProblemLost, raised inside the block, makes
        the next caller send it again.
        """
        if self._closed:
            raise ConnectionError("the supervisor is gone")
        key = _key(problem)
        entry = self._entries.get(key)
        if entry is None:
            writing = self._loop.run_in_executor(self._thread, self._give, problem)
            entry = self._entries[key] = _Entry(problem, writing)
            writing.add_done_callback(lambda done: self._done(key, done))
        self._entries.move_to_end(key)
        entry.holders += 1
        try:
            yield await asyncio.shield(entry.written)  # one holder's cancellation is not the others'
        except ProblemLost:
            self._forget(key, entry)
            raise
        finally:
            entry.holders -= 1
            self._trim()

    def _done(self, key: tuple[Any, ...], writing: asyncio.Future[Written]) -> None:
        if writing.cancelled() or writing.exception() is not None:
            del self._entries[key]  # the next caller tries again
            return
        self.kept_bytes += writing.result().size
        self._trim()

    def _forget(self, key: tuple[Any, ...], entry: _Entry) -> None:
        """Note that a problem did not arrive, unless another holder has done so."""
        if self._entries.get(key) is entry:
            del self._entries[key]
            self._let_go(entry, lost=True)

    def _let_go(self, entry: _Entry, *, lost: bool = False) -> None:
        done = entry.written.result()
        self.kept_bytes -= done.size
        if not self._closed:
            self._thread.submit(self._take_back, done.digest, lost)

    def _trim(self) -> None:
        """Drop the least recently used problems, never one that is held."""
        while len(self._entries) > self.kept_max or self.kept_bytes > self.kept_bytes_max:
            idle = (key for key, entry in self._entries.items() if not entry.holders and entry.written.done())
            if (key := next(idle, None)) is None:
                return
            self._let_go(self._entries.pop(key))

    def _give(self, problem: Problem) -> Written:
        if self._closed:
            raise ConnectionError("the supervisor is gone")
        try:
            handle, written = write(problem)
        except OSError as error:
            raise SandboxError(f"problem {problem.id!r} cannot be held in memory: {error}") from error
        self.written += 1
        if not self._given[written.digest] or written.digest in self._lost:
            self._send(f"+{written.digest}", [handle.fd])
            self._lost.discard(written.digest)
        self._given[written.digest] += 1
        return written

    def _take_back(self, digest: str, lost: bool) -> None:
        self._given[digest] -= 1
        if lost:
            self._lost.add(digest)
        if not self._given[digest]:
            del self._given[digest]
            self._lost.discard(digest)
            self._send(f"-{digest}", [])

    def _send(self, message: str, fds: list[int]) -> None:
        try:
            socket.send_fds(self._sock, [message.encode()], fds)
        except TimeoutError as error:
            raise SandboxError(f"the sandbox supervisor takes no problem within {_SEND_S:g} s") from error
        except OSError as error:
            raise ConnectionError(f"the supervisor is gone: {error}") from error

    def close(self) -> None:
        """End the thread; a waiting caller gets a ConnectionError. Safe to call twice."""
        if not self._closed:
            self._closed = True
            self._sock.shutdown(socket.SHUT_RDWR)  # which ends a send
            self._thread.submit(self._sock.close)
            self._thread.shutdown(wait=False)


class ReceivedProblems:
    """The supervisor's side."""

    def __init__(self, sock: socket.socket) -> None:
        """Takes ownership of `sock`."""
        self._sock = sock
        self._sock.setblocking(False)
        self._held: dict[str, ProblemHandle] = {}
        self.ended = False

    def fileno(self) -> int:
        return self._sock.fileno()

    def look(self) -> None:
        """Receive what was sent."""
        while not self.ended:
            try:
                data, fds = linux.recv_fds(self._sock, _MESSAGE_MAX, 1)
            except BlockingIOError:
                return
            sign, digest = data[:1], data[1:].decode()
            if fds:
                self._held[digest] = ProblemHandle(fds[0])
            elif sign == b"-":
                self._held.pop(digest, None)
            self.ended = not data

    def find(self, digest: str) -> ProblemHandle | None:
        """Return the problem sent before the job that asks; None when the caller withdrew it, or it could not be
        received.
        """
        self.look()
        return self._held.get(digest)


def _key(problem: Problem) -> tuple[Any, ...]:
    """Key by identity of what a case holds: comparing or hashing megabytes per program would cost what it saves."""
    parts = tuple(tuple(id(getattr(case, name)) for name in _OF_A_CASE) for case in problem.cases)
    return (*(getattr(problem, name) for name in _SMALL), parts)
