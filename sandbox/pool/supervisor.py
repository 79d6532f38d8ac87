"""The one process between a caller and its workers: a queue, N workers, and the promise that nothing is lost or left.

    caller ── socket ──▶ supervisor ── socket each ──▶ worker ──▶ jail

consumes  head {"id", "deadline_s", "expected_s", "turn", "hangs_max", "problem": its digest} with a body that it does
          not read, and {"cancel": id}; the problems themselves come by a socket of their own (store.py)
produces  {"started": id}, {"failed": id} for a try that our own fault ended, and for each job that was not cancelled
          exactly one of {"id", "judgement"} and {"id", "error"}
waits for its sockets and its caller's pid; woken by either; ends, with all workers, when the caller is gone

Started by exec, single-threaded; makes the run directory and removes it. A worker that dies or hangs is replaced and
its job is tried again, as often as `errors.Deaths` says: only our own faults are, for a program that crashed is a
verdict. Where it died with the program handed to a jail (`board`), whose fault that is is the caller's to find out
(pool.py).
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

from sandbox.errors import Deaths, ProblemLost, SandboxError, WorkerDied, WorkerHung, from_wire, not_started, to_wire
from sandbox.jail import end_children, start_process
from sandbox.kernel import linux, remove_run_directory
from sandbox.pool import messages
from sandbox.pool.problem_memfd import ProblemHandle
from sandbox.pool.schedule import Backlog
from sandbox.pool.shared_flags import SharedFlags
from sandbox.pool.store import ReceivedProblems

_CANCEL_S: Final = 5.0
"""A worker that is still busy so long after a cancel is replaced."""


@dataclass(slots=True, eq=False)
class _Job:
    head: messages.Head
    body: bytes
    problem: ProblemHandle
    deaths: Deaths = field(default_factory=Deaths)
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
    """By which it gets a job's problem, before the job."""
    job: _Job | None = field(default=None)
    patience: asyncio.Timeout | None = field(default=None)
    """Until when it may take for its job."""
    retires: bool = False
    """It has grown too large, and says so with its last answer."""


def main() -> None:
    """argv: descriptors of two sockets and the board, workers, isolation, packages, run directory, nice, caller."""
    fd, shelf, board, workers, isolation, packages, run_dir, nice, caller = sys.argv[1:]
    os.nice(int(nice))
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a descriptor for each problem
    linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)  # what a dead worker leaves becomes ours to reap
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    given = ReceivedProblems(socket.socket(fileno=int(shelf))), SharedFlags(int(board))
    supervisor = Supervisor(int(workers), isolation, packages, run_dir, *given)
    try:
        asyncio.run(supervisor.serve(socket.socket(fileno=int(fd)), int(caller)))
    finally:
        remove_run_directory(run_dir)


class Supervisor:
    """Queue and workers. One task per worker; all end when the caller does."""

    def __init__(
        self, workers: int, isolation: str, packages: str, run_dir: str, shelf: ReceivedProblems, board: SharedFlags
    ) -> None:
        self.size = workers
        self.shelf = shelf
        self.board = board
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
        loop.add_reader(self.shelf, self._look)
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
        while (message := await messages.read_message(reader)) is not None:
            head, body = message
            if "cancel" in head:
                self._cancel(head["cancel"])
                continue
            problem = self.shelf.find(head["problem"])
            if problem is None:  # of a job that is cancelled by what comes next, or we are out of descriptors
                await self._tell({"id": head["id"], "error": to_wire(ProblemLost("a problem did not arrive"))})
                continue
            job = self.jobs[head["id"]] = _Job(head, body, problem, Deaths(head["hangs_max"]))
            self._enqueue(job)

    def _look(self) -> None:
        self.shelf.look()
        if self.shelf.ended:
            asyncio.get_running_loop().remove_reader(self.shelf)

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
                if worker.patience is not None and not worker.patience.expired():
                    soon = asyncio.get_running_loop().time() + _CANCEL_S
                    worker.patience.reschedule(min(worker.patience.when() or soon, soon))

    async def _next(self) -> _Job:
        while True:
            await self.waiting.acquire()
            if self.queue:  # a cancelled job leaves its token behind
                return self.queue.take()

    async def _work(self) -> None:
        """One worker's life after another."""
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
            async with asyncio.timeout(job.head["deadline_s"]) as worker.patience:  # wait_for could swallow our own end
                reply = await self._reply(worker)
        except TimeoutError:
            raise WorkerHung("a worker does not answer") from None
        finally:
            worker.job = worker.patience = None
        if "error" in reply and reply["error"]["type"] == "WorkerDied":
            end_children(self.hired)  # what a dead jail's program had started is ours now
            await self._failed(job, from_wire(reply["error"]))
            return
        if job.cancelled:
            return
        self.jobs.pop(job.key, None)
        if "judgement" in reply:
            self.isolation = reply["judgement"]["tier"]  # what `auto` found: a later worker may not come up weaker
        await self._tell(reply)

    async def _reply(self, worker: _Worker) -> messages.Head:
        await worker.writer.drain()
        message = await messages.read_message(worker.reader)
        if message is None:
            raise WorkerDied("a worker died")
        worker.retires = message[0].pop("retires", False)
        return message[0]

    async def _failed(self, job: _Job, error: SandboxError | OSError) -> None:
        """Our fault: try the job again, or say so."""
        if job.cancelled:
            return
        await self._tell({"failed": job.key})
        fault = error if isinstance(error, SandboxError) else from_wire(to_wire(error))
        last = job.deaths.add(fault, handed=self.board.is_handed(job.key))
        self.board.take_back(job.key)
        if last is None:
            self._enqueue(job)
            return
        self.jobs.pop(job.key, None)
        await self._tell({"id": job.key, "error": to_wire(last)})

    async def _tell(self, head: messages.Head) -> None:
        with suppress(ConnectionError):  # a caller that is gone ends us by its pid
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
        """Nothing is left of a start that fails."""
        with ExitStack() as undo:
            mine, theirs = socket.socketpair()
            undo.callback(mine.close)
            with theirs:
                problems, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                undo.callback(problems.close)
                with its:
                    fds = [theirs.fileno(), its.fileno(), self.board.fd]
                    tail = [*map(str, fds), self.isolation, self.packages, self.run_dir, str(os.getpid())]
                    process = start_process("pool.worker", tail, fds)
            self.hired.add(process.pid)
            undo.callback(self._end, process)
            problems.setblocking(False)  # it has one job at a time, so there is always room
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
