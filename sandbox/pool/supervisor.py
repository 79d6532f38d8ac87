"""The one process between a caller and its workers: it queues jobs, restarts workers, and cleans up.

    caller ── socket ──▶ supervisor ── socket each ──▶ worker ──▶ jail

consumes  head {"id", "deadline_s", "expected_s", "turn", "problem": its digest} with a body that it does not
          read, and {"cancel": id}; the problems themselves come by a socket of their own (store.py)
produces  {"started": id}, and for each job that was not cancelled exactly one of {"id", "judgement"}, {"id", "run"}
          and {"id", "error"}; where our own fault ended it with "handed": whether its program was handed to a jail
waits for its sockets and its caller's pid; woken by either; ends, with all workers, when the caller is gone

Started by exec, single-threaded; makes the run directory and removes it. A worker that dies or hangs is replaced.
Whether its job is tried again, and whose fault that was, is the caller's to find out (pool.py); a program that crashed
is a verdict.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Final

from sandbox.errors import ProblemLost, SandboxError, WorkerDied, WorkerHung, from_wire, not_started, to_wire
from sandbox.jail.spawn import start_process
from sandbox.kernel import linux
from sandbox.kernel.orphan_cleanup import remove_run_directory
from sandbox.pool import messages
from sandbox.pool.messages import SharedFlags
from sandbox.pool.problem_memfd import ProblemHandle
from sandbox.pool.schedule import Backlog
from sandbox.pool.store import ReceivedProblems
from sandbox.zygote.guard import end_children

_CANCEL_S: Final = 5.0
"""A worker that is still busy this long after a cancel is replaced."""


@dataclass(slots=True, eq=False)
class _Job:
    head: messages.Head
    body: bytes
    problem: ProblemHandle
    cancelled: bool = False

    @property
    def key(self) -> int:
        return int(self.head["id"])


@dataclass(slots=True, eq=False)
class _Worker:
    process: subprocess.Popen[bytes]
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    problems: socket.socket
    """Socket by which it gets a job's problem, before the job."""
    job: _Job | None = field(default=None)
    deadline: asyncio.Timeout | None = field(default=None)
    """Deadline of its job."""
    retires: bool = False
    """Its memory has grown too large, as its last answer says."""


def main() -> None:
    """argv: descriptors of two sockets and the flags, workers, isolation, packages, run directory, nice, caller."""
    fd, received, flags, workers, isolation, packages, run_dir, nice, caller = sys.argv[1:]
    os.nice(int(nice))
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a descriptor for each problem
    linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)  # orphans of a dead worker are reaped here
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    given = ReceivedProblems(socket.socket(fileno=int(received))), SharedFlags(int(flags))
    supervisor = Supervisor(int(workers), isolation, packages, run_dir, *given)
    try:
        asyncio.run(supervisor.serve(socket.socket(fileno=int(fd)), int(caller)))
    finally:
        remove_run_directory(run_dir)


class Supervisor:
    """The queue and the workers, a task per worker; all end when the caller does."""

    def __init__(
        self, workers: int, isolation: str, packages: str, run_dir: str, received: ReceivedProblems, flags: SharedFlags
    ) -> None:
        self.size = workers
        self.received = received
        self.flags = flags
        self.packages = packages
        self.isolation = isolation
        self.run_dir = run_dir
        self.queue: Backlog[_Job] = Backlog()
        self.waiting = asyncio.Semaphore(0)
        self.jobs: dict[int, _Job] = {}
        self.workers: set[_Worker] = set()
        self.hired: set[int] = set()

    async def serve(self, sock: socket.socket, caller: int) -> None:
        gone = asyncio.Event()
        loop = asyncio.get_running_loop()
        try:
            pidfd = os.pidfd_open(caller)  # end of stream alone would miss a caller whose forked child holds the socket
        except ProcessLookupError:
            return
        if os.getppid() != caller:
            return
        loop.add_reader(pidfd, gone.set)
        loop.add_reader(self.received, self._look)
        loop.add_signal_handler(signal.SIGTERM, gone.set)
        reader, self.caller = await asyncio.open_connection(limit=messages.BUFFER, sock=sock)
        try:
            os.mkdir(self.run_dir, 0o711 if os.geteuid() == 0 else 0o700)  # a jail's programs may have another uid
        except OSError as error:
            await self._tell({"ends": not_started("the sandbox", error)})
            self.caller.close()
            await self.caller.wait_closed()
            return
        tasks = [asyncio.create_task(self._listen(reader)), asyncio.create_task(gone.wait())]
        tasks += [asyncio.create_task(self._work()) for _ in range(self.size)]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for worker in list(self.workers):
                self._dismiss(worker)
            end_children(set())

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        while (message := await messages.read_pool_message(reader)) is not None:
            head, body = message
            if "cancel" in head:
                self._cancel(head["cancel"])
                continue
            problem = self.received.find(head["problem"])
            if problem is None:  # its job is cancelled by the next message, or there are no descriptors left
                await self._tell({"id": head["id"], "error": to_wire(ProblemLost("a problem did not arrive"))})
                continue
            job = self.jobs[head["id"]] = _Job(head, body, problem)
            self._enqueue(job)

    def _look(self) -> None:
        self.received.look()
        if self.received.ended:
            asyncio.get_running_loop().remove_reader(self.received)

    def _enqueue(self, job: _Job) -> None:
        self.queue.put(job.key, job.head["expected_s"], job, job.head["turn"])
        self.waiting.release()

    def _cancel(self, key: int) -> None:
        job = self.jobs.pop(key, None)
        if job is None:
            return
        job.cancelled = True
        self.queue.drop(key)
        for worker in self.workers:
            if worker.job is job:
                worker.writer.write(messages.pack_message({"cancel": key}))
                if worker.deadline is not None and not worker.deadline.expired():
                    soon = asyncio.get_running_loop().time() + _CANCEL_S
                    worker.deadline.reschedule(min(worker.deadline.when() or soon, soon))

    async def _next(self) -> _Job:
        while True:
            await self.waiting.acquire()
            if self.queue:  # a cancelled job leaves its token behind
                return self.queue.take()

    async def _work(self) -> None:
        """Run one worker after another."""
        worker: _Worker | None = None
        while True:
            job = await self._next()
            try:
                if worker is None:
                    worker = await self._hire()
                await self._run(worker, job)
                if worker.retires:
                    self._dismiss(worker)
                    worker = None
            except (SandboxError, OSError) as error:
                if worker is not None:
                    self._dismiss(worker)
                    worker = None
                await self._failed(job, error)

    async def _run(self, worker: _Worker, job: _Job) -> None:
        worker.job = job
        try:
            await self._tell({"started": job.key})
            if job.key not in self.jobs:
                return  # cancelled
            socket.send_fds(worker.problems, [b"+"], [job.problem.fd])
            worker.writer.write(messages.pack_message(job.head, job.body))
            async with asyncio.timeout(job.head["deadline_s"]) as worker.deadline:  # wait_for may swallow a cancel
                reply = await self._reply(worker)
        except TimeoutError:
            raise WorkerHung("a worker does not answer") from None
        finally:
            worker.job = worker.deadline = None
        if "error" in reply and reply["error"]["type"] in ("WorkerDied", "Starved"):
            end_children(self.hired)  # processes of a dead jail's program are children of this process now
            await self._failed(job, from_wire(reply["error"]))
            return
        if job.cancelled:
            return
        self.jobs.pop(job.key, None)
        if done := reply.get("judgement", reply.get("run")):
            self.isolation = done["tier"]  # the tier that `auto` found: a later worker must not be weaker
        await self._tell(reply)

    async def _reply(self, worker: _Worker) -> messages.Head:
        await worker.writer.drain()
        message = await messages.read_pool_message(worker.reader)
        if message is None:
            raise WorkerDied("a worker died")
        worker.retires = message[0].pop("retires", False)
        return message[0]

    async def _failed(self, job: _Job, error: SandboxError | OSError) -> None:
        """Our fault: the caller decides what becomes of the job."""
        if job.cancelled:
            return
        self.jobs.pop(job.key, None)
        handed = self.flags.is_handed(job.key)
        self.flags.take_back(job.key)
        await self._tell({"id": job.key, "error": to_wire(error), "handed": handed})

    async def _tell(self, head: messages.Head) -> None:
        with suppress(ConnectionError):  # the check of the caller's pid ends this process
            self.caller.write(messages.pack_message(head))
            await self.caller.drain()

    async def _hire(self) -> _Worker:
        try:
            worker = await self._start_worker()
        except OSError as error:
            raise SandboxError(not_started("a worker of the sandbox", error)) from error
        self.workers.add(worker)
        return worker

    async def _start_worker(self) -> _Worker:
        """A start that fails leaves nothing behind."""
        with ExitStack() as undo:
            mine, theirs = socket.socketpair()
            undo.callback(mine.close)
            with theirs:
                problems, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                undo.callback(problems.close)
                with its:
                    fds = [theirs.fileno(), its.fileno(), self.flags.fd]
                    tail = [*map(str, fds), self.isolation, self.packages, self.run_dir, str(os.getpid())]
                    process = start_process("pool.worker", tail, fds)
            self.hired.add(process.pid)
            undo.callback(self._end, process)
            problems.setblocking(False)  # it has one job at a time, so the socket's buffer suffices
            reader, writer = await asyncio.open_connection(limit=messages.BUFFER, sock=mine)
            undo.pop_all()
        return _Worker(process, reader, writer, problems)

    def _dismiss(self, worker: _Worker) -> None:
        self.workers.discard(worker)
        self._end(worker.process)
        worker.writer.close()
        worker.problems.close()

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()  # its jail dies with it
        process.wait()
        self.hired.discard(process.pid)
        end_children(self.hired)
