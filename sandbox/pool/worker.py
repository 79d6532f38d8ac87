"""One worker: a jail, a builder and a judge, which the supervisor sends one job at a time over a socket.

consumes  head {"id", "problem": its digest}; body: {"program", "task", "fetch", "asserts", "stop", "only"} as JSON;
          before each such message the problem itself, by a socket of its own
produces  {"id", "judgement"}, or {"id", "run"} for the task "run", or {"id", "error"}; with "recycled" when it replaced
          its jail, and "retires" when it wants to be replaced itself
waits for the socket; woken by a job, or in the middle of one by a cancel message; ends when the socket closes

It holds the expected outputs, and so never runs inside a jail. A jail that fails, has run for long or has grown is
replaced for the next job; a worker that has grown asks for a successor. Where a program ends with an error, and our own
check program fails in that jail as well, the jail is replaced and the program judged again, so that no program pays for
an earlier one. If the check fails again, a jail where no program ran decides who is at fault.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import sys
from collections import OrderedDict
from contextlib import suppress
from typing import Any, Final, NoReturn, cast

from sandbox.build.builder import Builder
from sandbox.core.nouns import MIB, Case, Isolation, Judgement, Program, Verdict
from sandbox.core.problem import Problem
from sandbox.core.program_run import ProgramRun
from sandbox.errors import ProblemLost, SandboxError, WorkerDied, to_wire
from sandbox.jail.jail import Jail
from sandbox.judging.judge import Judge
from sandbox.judging.single_run import run_program
from sandbox.kernel import linux
from sandbox.pool import messages
from sandbox.pool.messages import SharedFlags
from sandbox.pool.problem_memfd import ProblemHandle, read_problem

RECYCLE_AFTER_RUNS: Final = 5000
JAIL_BYTES_MAX: Final = 256 * MIB
WORKER_BYTES_MAX: Final = 384 * MIB
WEIGH_EVERY: Final = 64
"""Jobs between two checks of the memory."""
PROBLEM_BYTES_MAX: Final = 64 * MIB
"""Bytes of the problems that it keeps parsed, by their written size."""
_CHECK: Final = Problem("check", "stdio", (Case("1\n", "sound 1"),))
_SOUND: Final = Program(
    "import os\nassert os.listdir('.') == ['main.py']\nos.mkdir('place')\nwith open('place/file', 'w') as file:\n"
    "    file.write('sound')\nif os.fork() == 0:\n    os._exit(0)\nos.wait()\n"
    "print(open('place/file').read(), input())\n"
)
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """argv: descriptors of two sockets and of the flags, isolation, packages as JSON, run directory, parent pid."""
    fd, problems, flags, isolation, packages, run_dir, parent = sys.argv[1:]
    signal.signal(signal.SIGTERM, _end)
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGTERM)  # not SIGKILL: in tier B only an orderly end reaches daemons
    if os.getppid() != int(parent):
        return
    sockets = socket.socket(fileno=int(fd)), socket.socket(fileno=int(problems))
    worker = PoolWorker(*sockets, SharedFlags(int(flags)), isolation, run_dir, json.loads(packages))
    try:
        while (message := messages.receive_pool_message(worker.sock)) is not None:
            head, body = message
            if "cancel" not in head:  # a cancel here was for a job that has ended
                worker.sock.sendall(messages.pack_message({"id": head["id"], **worker.answer(head, body)}))
    finally:
        worker.close()


def _end(*_: object) -> NoReturn:
    sys.exit(0)


class PoolWorker:
    """See the module."""

    def __init__(
        self,
        sock: socket.socket,
        problems: socket.socket,
        flags: SharedFlags,
        isolation: str,
        run_dir: str,
        packages: dict[str, list[str]],
    ) -> None:
        self.sock = sock
        self.problem_socket = problems
        self.flags = flags
        self.packages = packages
        self.isolation = isolation
        self.run_dir = run_dir
        self.builder: Builder | None = None
        self.jail: Jail | None = None
        self.jobs = 0
        self.replaced = 0
        """Jails in which the check program failed, since the last report."""
        self.problems: OrderedDict[str, tuple[Problem, int]] = OrderedDict()
        self.problem_bytes = 0

    def answer(self, head: messages.Head, body: bytes) -> messages.Head:
        """Return a judgement, or an error of the sandbox, as the message to the caller."""
        self.jobs += 1
        try:
            done = self._judge(head, body)
        except Exception as error:
            if isinstance(error, WorkerDied) or (self.jail is not None and self.jail.broken):
                self.close()
            return {"error": to_wire(error)}
        name = "run" if isinstance(done, ProgramRun) else "judgement"
        return {name: done.to_json(), **self._refresh()}

    def _judge(self, head: messages.Head, body: bytes) -> Judgement | ProgramRun:
        _, fds = linux.recv_fds(self.problem_socket, 16, 1)
        if not fds:
            raise ProblemLost("a problem did not arrive")
        problem = self._problem(head["problem"], ProblemHandle(fds[0]))
        job: dict[str, Any] = messages.parse_head(body)
        for _ in range(2):
            judge = Judge(self._jail(), self._builder(), job["stop"], self.sock.fileno(), job["only"])
            self.flags.hand(head["id"])
            done = _do(judge, problem, Program(**job["program"]), job)
            crashed = done.crashed if isinstance(done, ProgramRun) else done.verdict is Verdict.RE
            if not crashed or self._is_sound():
                break
            self.flags.take_back(head["id"])
            self.close()
            self.replaced += 1
        else:
            if not self._is_sound():  # where nothing else has run
                self.close()
                raise SandboxError("our own check program fails in a fresh jail; see `sandbox doctor`")
        return done

    def _is_sound(self) -> bool:
        """Return whether the jail still works for the check program. Raises SandboxError when the job is cancelled."""
        try:
            judge = Judge(self._jail(), self._builder(), cancel_fd=self.sock.fileno())
            return judge.judge(_CHECK, _SOUND).verdict is Verdict.AC
        except WorkerDied:
            return False

    def _problem(self, digest: str, handle: ProblemHandle) -> Problem:
        """Return the job's problem.

        The samples of a group share one, and validating it can take longer than judging.
        """
        if digest in self.problems:
            self.problems.move_to_end(digest)
            return self.problems[digest][0]
        problem, size = read_problem(handle), os.fstat(handle.fd).st_size
        self.problems[digest] = problem, size
        self.problem_bytes += size
        while self.problem_bytes > PROBLEM_BYTES_MAX:
            self.problem_bytes -= self.problems.popitem(last=False)[1][1]
        return problem

    def _refresh(self) -> messages.Head:
        """Close a jail that is due for replacement; returns what to report of it."""
        notes: messages.Head = {"recycled": self.replaced} if self.replaced else {}
        self.replaced = 0
        jail = self.jail
        weigh = self.jobs % WEIGH_EVERY == 0
        if jail is not None and (
            jail.runs >= RECYCLE_AFTER_RUNS
            or (weigh and any(resident(pid, below=True) > JAIL_BYTES_MAX for pid in jail.pids()))
        ):
            self.close()
            notes["recycled"] = notes.get("recycled", 0) + 1
        if weigh and resident(os.getpid()) > WORKER_BYTES_MAX:
            notes = {"recycled": notes.get("recycled", 0) + 1, "retires": True}
        return notes

    def _builder(self) -> Builder:
        if self.builder is None:
            self.builder = Builder(os.path.join(self.run_dir, "build"))
        return self.builder

    def _jail(self) -> Jail:
        if self.jail is None:
            self.jail = Jail(
                cast(Isolation, self.isolation),
                run_dir=self.run_dir,
                packages=self.packages,
                shared=self._builder().shared,
            )
            self.isolation = self.jail.tier  # the tier that `auto` found: the next jail must not be weaker
        return self.jail

    def close(self) -> None:
        if self.jail is not None:
            self.jail.close()
            self.jail = None


def _do(judge: Judge, problem: Problem, program: Program, job: dict[str, Any]) -> Judgement | ProgramRun:
    match job["task"]:
        case "run":
            how = {"asserts": job["asserts"], "cancel_fd": judge.cancel_fd}
            return run_program(judge.jail, judge.builder, problem, program, tuple(job["fetch"]), **how)[1]
        case "build":
            return dataclasses.replace(judge, wanted=lambda *_: False).judge(problem, program)
        case _:
            return judge.judge(problem, program)


def resident(pid: int, *, below: bool = False) -> int:
    """Resident bytes of a process, with `below` of its children as well; 0 when it is gone."""
    total = 0
    with suppress(OSError, ValueError, IndexError):
        with open(f"/proc/{pid}/statm", "rb") as file:
            total = int(file.read().split()[1]) * _PAGE
        if below:
            with open(f"/proc/{pid}/task/{pid}/children", "rb") as file:
                total += sum(resident(int(child)) for child in file.read().split())
    return total
