"""The pool's side of one supervisor process, and the jobs that this supervisor has.

consumes  ask(head, body, ticket)              produces  the Judgement or ProgramRun of a job, or its SandboxError
waits for the supervisor's socket; woken by it; ends with it, and then every job in hand fails as TryFailed
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from subprocess import Popen
from typing import Any, Final

from sandbox.core.nouns import Judgement
from sandbox.core.problem import Problem
from sandbox.core.program_run import ProgramRun
from sandbox.errors import SandboxError, WorkerDied, from_wire, not_started
from sandbox.jail.spawn import start_process
from sandbox.kernel import inherited
from sandbox.kernel.orphan_cleanup import remove_run_directory, reserve_directory
from sandbox.pool import messages
from sandbox.pool.counts import Counts
from sandbox.pool.messages import SharedFlags
from sandbox.pool.problem_memfd import Written
from sandbox.pool.slots import Slots
from sandbox.pool.store import KEPT_MAX, Store, held_most

Answer = Judgement | ProgramRun
_CLOSE_S: Final = 5.0
_WRITING_MAX: Final = 16
"""Problems that are given to the supervisor at a time for jobs that still wait for a place."""


class TryFailed(SandboxError):
    """A try of a job that our own fault ended, `cause`: its worker failed, or the supervisor died. `blamed`: this job
    was being judged, or nothing was ever answered. `handed`: its program was handed to a jail.
    """

    def __init__(self, cause: SandboxError, *, blamed: bool = True, handed: bool = False) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.blamed = blamed
        self.handed = handed


@dataclass(slots=True, eq=False)
class Ticket:
    """One judge() call for the counts: running while at least one of its parts is."""

    counts: Counts
    parts: int = 0
    started_s: float = 0.0

    def start(self) -> None:
        self.parts += 1
        self.started_s = self.started_s or time.monotonic()
        self.counts.running += self.parts == 1

    def stop(self) -> None:
        self.parts -= 1
        self.counts.running -= self.parts == 0


@dataclass(slots=True, eq=False)
class _Asked:
    key: int
    answer: asyncio.Future[Answer]
    ticket: Ticket
    started: bool = False

    def stop(self) -> None:
        if self.started:
            self.started = False
            self.ticket.stop()


class Link:
    """See the module. Starts its supervisor on construction; SandboxError when the machine has no resources left."""

    def __init__(
        self, arguments: list[str], counts: Counts, loop: asyncio.AbstractEventLoop, places: Slots, directory: str = ""
    ) -> None:
        """`arguments`: workers, isolation, packages, nice. `directory`: where ours is made."""
        self.loop = loop
        self.places = places
        self.counts = counts
        self.dead = False
        self.closing = False
        self.answered = False
        self.next_id = 0
        self.asked: dict[int, _Asked] = {}
        self.why = "the sandbox supervisor died"
        self.writing = asyncio.Semaphore(_WRITING_MAX)
        try:
            self._start(arguments, directory)
        except OSError as error:
            raise SandboxError(not_started("the sandbox", error)) from error
        self.writer: asyncio.Future[asyncio.StreamWriter] = loop.create_future()
        self.task = loop.create_task(self._listen(), name="sandbox-pool")

    def _start(self, arguments: list[str], directory: str) -> None:
        workers, isolation, packages, nice = arguments
        self.directory = reserve_directory(directory)
        with ExitStack() as undo:
            self.sock, theirs = inherited.connected_sockets()
            undo.callback(self.sock.close)
            self.flags = SharedFlags()
            undo.callback(self.flags.close)
            with theirs:
                ours, received = inherited.connected_sockets(socket.SOCK_SEQPACKET)
                undo.callback(ours.close)
                with received:
                    self.store = Store(ours, self.loop, kept_max=min(KEPT_MAX, held_most(int(workers))))
                    undo.callback(self.store.close)
                    fds = [theirs.fileno(), received.fileno(), self.flags.fd]
                    tail = [*map(str, fds), workers, isolation, packages, self.directory, nice, str(os.getpid())]
                    self.process: Popen[bytes] = start_process("pool.supervisor", tail, fds)
            undo.pop_all()

    async def write(self, problem: Problem) -> Written:
        """Return the problem's digest and size, writing it first if needed. Raises SandboxError."""
        async with self.writing, self.hold(problem) as written:  # all together could be too many at once
            return written

    @asynccontextmanager
    async def hold(self, problem: Problem) -> AsyncIterator[Written]:
        """Hold the problem at the supervisor. Raises SandboxError."""
        try:
            async with self.store.hold(problem) as written:
                yield written
        except ConnectionError:
            raise self._gone() from None

    async def ask(self, head: messages.Head, body: bytes, ticket: Ticket) -> Answer:
        key = self.next_id = self.next_id + 1
        packed = messages.pack_message({"id": key, **head}, body)
        asked = self.asked[key] = _Asked(key, self.loop.create_future(), ticket)
        try:
            if self.dead:
                raise self._gone(asked)
            writer = await asyncio.shield(self.writer)
            writer.write(packed)
            with suppress(ConnectionError):
                await writer.drain()
            return await asked.answer
        except asyncio.CancelledError:
            if not self.dead and self.writer.done():
                self.writer.result().write(messages.pack_message({"cancel": key}))
            raise
        finally:
            del self.asked[key]
            asked.stop()

    def _gone(self, asked: _Asked | None = None) -> TryFailed:
        started = asked is not None and asked.started
        handed = asked is not None and self.flags.is_handed(asked.key)
        return TryFailed(WorkerDied(self.why), blamed=started or not self.answered, handed=handed)

    async def _listen(self) -> None:
        writer: asyncio.StreamWriter | None = None
        try:
            reader, writer = await asyncio.open_connection(limit=messages.BUFFER, sock=self.sock)
            self.writer.set_result(writer)
            while (message := await messages.read_pool_message(reader)) is not None:
                self._handle(message[0])
        finally:
            self.dead = True
            if writer is not None:
                writer.close()  # the supervisor ends at the end of this stream
            for asked in self.asked.values():
                _fail(asked.answer, self._gone(asked))
            _fail(self.writer, self._gone())
            if not self.closing:
                self.kill()

    def _handle(self, message: messages.Head) -> None:
        if "ends" in message:
            self.why = message["ends"]
            return
        self.counts.recycled += message.get("recycled", 0)
        key = next(message[name] for name in ("started", "id") if name in message)
        asked = self.asked.get(key)
        if "started" in message:
            if asked is not None and not asked.started:
                asked.started = True
                asked.ticket.start()
            return
        self.answered = True
        if asked is None or asked.answer.done():
            pass  # cancelled in the meantime
        elif "error" in message:
            error = from_wire(message["error"])
            asked.answer.set_exception(TryFailed(error, handed=message["handed"]) if "handed" in message else error)
        elif "run" in message:
            asked.answer.set_result(ProgramRun.from_json(message["run"]))
        else:
            asked.answer.set_result(Judgement.from_json(message["judgement"]))

    async def close(self) -> None:
        """Let the supervisor end; after 5 s, SIGKILL."""
        self.closing = True
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task
        if not self.writer.done():
            self.sock.close()  # no task has listened, and so no task has closed it
        deadline = time.monotonic() + _CLOSE_S
        while self.process.poll() is None and time.monotonic() < deadline:  # noqa: ASYNC110 - it has a deadline
            await asyncio.sleep(0.005)
        self.kill()

    def kill(self) -> None:
        """Kill the supervisor: its workers and their jails die with it."""
        self.dead = True
        self.sock.close()
        self.store.close()
        self.flags.close()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        remove_run_directory(self.directory)


def _fail(answer: asyncio.Future[Any], error: TryFailed) -> None:
    if not answer.done():
        answer.set_exception(error)
        answer.exception()  # retrieved: the caller may be gone as well
