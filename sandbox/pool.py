"""The async front: many judgements at once, judged by N workers under one supervisor process.

consumes  judge(problem, program)                     produces  a Judgement, or raises SandboxError
waits for a place in the queue, then for the supervisor's answer; woken by either; cancelling it cancels the job

    async with sandbox.Pool(workers=4) as pool:
        judgement = await pool.judge(problem, program)

A Pool can be made anywhere; processes, sockets and asyncio objects are made on the first await, in the loop that
awaits. They end with `close()`, with the loop's owner, or with the caller's process, however that dies.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import shutil
import socket
import time
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from subprocess import Popen
from types import TracebackType
from typing import Any, Final

from sandbox import wire
from sandbox.core import COMPILE_LIMITS, Isolation, Judgement, Problem, Program
from sandbox.errors import PoolClosed, SandboxError, WorkerDied, from_wire
from sandbox.spawn import start_process
from sandbox.sweep import run_directory
from sandbox.watch import WALL_STRETCH

_CLOSE_S: Final = 5.0
_ENCODED_MAX: Final = 64
_RETRIES_MAX: Final = 2


@dataclass(frozen=True, slots=True)
class PoolStats:
    """Counts since the pool was made."""

    queued: int
    running: int
    done: int
    """Judgements given."""
    infrastructure_failures: int
    """Tries that failed by our own fault, whether a later try succeeded or not."""
    verdicts: Mapping[str, int]
    busy_s: float
    """Worker seconds spent on judgements."""
    queue_s: float
    """Seconds that judgements waited, summed."""


class Pool:
    """See the module. `workers=None` takes one per core that this process may use."""

    def __init__(
        self,
        workers: int | None = None,
        *,
        isolation: Isolation = "auto",
        stop_at_first_failure: bool = True,
        queue_limit: int = 1024,
        nice: int = 5,
    ) -> None:
        if workers is not None and workers < 1:
            raise ValueError(f"workers={workers}: a pool needs at least 1; None takes one per core")
        if queue_limit < 1:
            raise ValueError(f"queue_limit={queue_limit}: must be at least 1")
        self.workers = workers or len(os.sched_getaffinity(0))
        self.isolation = isolation
        self.stop_at_first_failure = stop_at_first_failure
        self.queue_limit = queue_limit
        self.nice = nice
        self._link: _Link | None = None
        self._closed = False
        self._counts = _Counts()
        self._encoded: OrderedDict[int, tuple[Problem, bytes]] = OrderedDict()

    async def __aenter__(self) -> Pool:
        self._connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def judge(self, problem: Problem, program: Program) -> Judgement:
        """Judge one program. Raises SandboxError for our faults; waits while `queue_limit` jobs are in hand."""
        start = time.monotonic()
        self._counts.queued += 1
        try:
            link = self._connect()
            async with link.places:
                judgement = await self._ask(problem, program)
        finally:
            self._counts.queued -= 1
        spent = time.monotonic() - start
        judgement = dataclasses.replace(judgement, queue_s=max(0.0, spent - judgement.run_s))
        self._counts.record(judgement)
        return judgement

    async def _ask(self, problem: Problem, program: Program) -> Judgement:
        head = {"deadline_s": _deadline_s(problem)}
        body = self._encode(problem, program)
        for attempt in range(_RETRIES_MAX + 1):
            try:
                return await self._connect().ask(head, body)
            except _SupervisorGone:
                self._counts.failures += 1
                if self._closed:
                    raise PoolClosed("the pool was closed while this job waited") from None
                if attempt == _RETRIES_MAX:
                    raise
        raise AssertionError("unreachable")

    def _encode(self, problem: Problem, program: Program) -> bytes:
        """A job as JSON. A group's samples share one Problem, whose megabytes of tests are written once."""
        key = id(problem)
        if key not in self._encoded:
            self._encoded[key] = (problem, json.dumps(problem.to_json()).encode())
            if len(self._encoded) > _ENCODED_MAX:
                self._encoded.popitem(last=False)
        rest = {"program": {"source": program.source, "language": program.language}, "stop": self.stop_at_first_failure}
        return json.dumps(rest).encode()[:-1] + b', "problem": ' + self._encoded[key][1] + b"}"

    def _connect(self) -> _Link:
        """The live link to a supervisor in the running loop; starts one where there is none."""
        if self._closed:
            raise PoolClosed("the pool is closed")
        loop = asyncio.get_running_loop()
        link = self._link
        if link is not None and link.loop is not loop:
            if not link.loop.is_closed():
                raise SandboxError("the pool is in use in another event loop; make one pool per loop")
            link.kill()
            link = None
        if link is None or link.dead:
            link = self._link = _Link(self, loop, link.places if link else asyncio.Semaphore(self.queue_limit))
        return link

    def stats(self) -> PoolStats:
        counts = self._counts
        return PoolStats(
            queued=counts.queued - counts.running,
            running=counts.running,
            done=counts.done,
            infrastructure_failures=counts.failures,
            verdicts=dict(counts.verdicts),
            busy_s=counts.busy_s,
            queue_s=counts.queue_s,
        )

    def pids(self) -> tuple[int, ...]:
        """The supervisor's pid, while it runs; everything else is below it and dies with it."""
        return (self._link.process.pid,) if self._link is not None and not self._link.dead else ()

    async def close(self) -> None:
        """End all processes and remove all files; waiting judge() calls raise PoolClosed. At most 5 s, then SIGKILL."""
        self._closed = True
        link, self._link = self._link, None
        if link is not None:
            await link.close()


@dataclass(slots=True)
class _Counts:
    queued: int = 0
    running: int = 0
    done: int = 0
    failures: int = 0
    busy_s: float = 0.0
    queue_s: float = 0.0
    verdicts: dict[str, int] = dataclasses.field(default_factory=dict)

    def record(self, judgement: Judgement) -> None:
        self.done += 1
        self.busy_s += judgement.run_s
        self.queue_s += judgement.queue_s
        self.verdicts[judgement.verdict.value] = self.verdicts.get(judgement.verdict.value, 0) + 1


class _SupervisorGone(WorkerDied):
    """The supervisor died under a job."""


class _Link:
    """One supervisor process, and the jobs that it has in hand."""

    def __init__(self, pool: Pool, loop: asyncio.AbstractEventLoop, places: asyncio.Semaphore) -> None:
        self.loop = loop
        self.places = places
        self.counts = pool._counts
        self.dead = False
        self.closing = False
        self.next_id = 0
        self.answers: dict[int, asyncio.Future[Judgement]] = {}
        self.started: set[int] = set()
        self.directory = run_directory()
        self.sock, theirs = socket.socketpair()
        tail = [str(theirs.fileno()), str(pool.workers), pool.isolation, self.directory, str(pool.nice)]
        try:
            with theirs:
                self.process: Popen[bytes] = start_process("supervisor", [*tail, str(os.getpid())], [theirs.fileno()])
        except BaseException:
            self.sock.close()
            shutil.rmtree(self.directory, ignore_errors=True)
            raise
        self.writer: asyncio.Future[asyncio.StreamWriter] = loop.create_future()
        self.task = loop.create_task(self._listen(), name="sandbox-pool")

    async def ask(self, head: wire.Head, body: bytes) -> Judgement:
        key = self.next_id = self.next_id + 1
        packed = wire.pack({"id": key, **head}, body)
        answer = self.answers[key] = self.loop.create_future()
        try:
            if self.dead:
                raise _SupervisorGone("the sandbox supervisor died")
            writer = await asyncio.shield(self.writer)
            writer.write(packed)
            with suppress(ConnectionError):
                await writer.drain()
            judgement: Judgement = await answer
            return judgement
        except asyncio.CancelledError:
            if not self.dead and self.writer.done():
                self.writer.result().write(wire.pack({"cancel": key}))
            raise
        finally:
            self.answers.pop(key, None)
            self._stopped(key)

    async def _listen(self) -> None:
        writer: asyncio.StreamWriter | None = None
        try:
            reader, writer = await asyncio.open_connection(limit=wire.BUFFER, sock=self.sock)
            self.writer.set_result(writer)
            while (message := await wire.read(reader)) is not None:
                self._handle(message[0])
        finally:
            self.dead = True
            if writer is not None:
                writer.close()  # the supervisor ends at the end of this stream
            gone = _SupervisorGone("the sandbox supervisor died")
            waiting: list[asyncio.Future[Any]] = [*self.answers.values(), self.writer]
            for answer in waiting:
                if not answer.done():
                    answer.set_exception(gone)
                    answer.exception()  # retrieved: the asker may be gone as well
            if not self.closing:
                self.kill()

    def _handle(self, message: wire.Head) -> None:
        if (key := message.get("started")) is not None:
            if key in self.answers and key not in self.started:
                self.started.add(key)
                self.counts.running += 1
            return
        if (key := message.get("failed")) is not None:
            self.counts.failures += 1
            self._stopped(key)
            return
        answer = self.answers.get(message["id"])
        if answer is None or answer.done():
            return  # cancelled in the meantime
        if "error" in message:
            answer.set_exception(from_wire(message["error"]))
        else:
            answer.set_result(Judgement.from_json(message["judgement"]))

    def _stopped(self, key: int) -> None:
        if key in self.started:
            self.started.discard(key)
            self.counts.running -= 1

    async def close(self) -> None:
        self.closing = True
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task
        deadline = time.monotonic() + _CLOSE_S
        while self.process.poll() is None and time.monotonic() < deadline:  # noqa: ASYNC110 - it has a deadline
            await asyncio.sleep(0.005)
        self.kill()

    def kill(self) -> None:
        """The hard end: the supervisor's workers die with it, and their jails with them."""
        self.dead = True
        self.sock.close()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)


def _deadline_s(problem: Problem) -> float:
    """Seconds after which a worker that still has a job counts as hanging: all limits, stretched, and a margin."""
    each = problem.limits.wall_limit_s * WALL_STRETCH + 20.0
    return 60.0 + COMPILE_LIMITS.wall_limit_s * WALL_STRETCH + each * len(problem.cases)
