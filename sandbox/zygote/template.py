"""A process that holds what all runs of one program share, and starts each run as a fresh process.

    zygote ── template ─┬─ the current run
                        └─ spare: forked, confined, waiting for the next run's descriptors

forks     a spare ahead of time, so that a run starts at once. Template and spares keep the zygote's uid until they get
          a run, so no program can signal, trace or limit them; they have Landlock, the seccomp filter, the limits, and
          only the capability to become the program.
spawns    a native program of tier A with vfork and exec, out of a template that already has the program's identity. A
          program can kill that template: then its run is repeated without one.

Neither executes code of the program itself.
"""

from __future__ import annotations

import errno
import gc
import os
import resource
import signal
import socket
import struct
import types
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple

from sandbox.kernel import linux, procfs
from sandbox.pyharness import _runner
from sandbox.zygote.become_program import (
    ChildSetup,
    Following,
    Forked,
    Request,
    become,
    fail,
    is_native_request,
    take_on,
    toolchain_program,
    turn,
)
from sandbox.zygote.confine import STREAMS, confine_program, keep_only_identity, plan_rlimits, restrain
from sandbox.zygote.watch import Child, RunOutcome, Tribe, WatchedRun, end_all

Begin = Callable[[Request, list[int]], WatchedRun]
SPARES: Final = 2  # one for the run in hand, one that is forked meanwhile
_ENDED: Final = struct.Struct("=idq")  # wait status, CPU seconds, peak memory in bytes
_GO: Final = b"!"
_GO_FDS: Final = 32
_SAME: Final = ("mode", "argv", "program", "environment", "harness", "with_tools", "limits")
"""Fields that all runs of a template share; the rest of a run is in its descriptors."""
_ROOM: Final = socket.CMSG_SPACE(_GO_FDS * 4)
_IN_PLACE: Final = struct.pack(f"{STREAMS}i", *range(STREAMS))
_IN_PLACE_BYTES: Final = len(_IN_PLACE)
# Names of this module: os would be one object more, and each that a process touches after a fork costs it a page.
_close, _exit, _fork, _wait4, _write = os.close, os._exit, os.fork, os.wait4, os.write
_held: Final[list[object]] = []
"""Objects that a spare would have to free when it has its run, at the cost of copying their pages."""


class Starter:
    """Starts runs: from the program's template if it has one or is worth one, else in a fork of the zygote."""

    def __init__(self, setting: ChildSetup, tribe: Tribe) -> None:
        self.setting, self.tribe = setting, tribe
        self.template: Template | None = None
        lineage = f"/proc/self/task/{os.getpid()}/children"
        self.possible = setting.how.uid is not None and os.geteuid() == 0 and os.path.exists(lineage)
        """Programs have a uid that is not ours, and the kernel lists a process's children."""

    def begin(self, request: Request, fds: list[int]) -> WatchedRun:
        """Start the program."""
        left = request["series"][1]
        if self.template is not None and not self.template.fits(request):
            self.forget()
        if self.template is None:
            if left < 2 or not self.possible:
                return self.fork(request, fds)
            self.template = Template(request, fds, self.setting, self.tribe)
        self.template.go(fds)
        return self.template

    def fork(self, request: Request, fds: list[int]) -> WatchedRun:
        """Start the program without a template."""
        rlimits = plan_rlimits(self.setting.how, request["limits"])
        procfs.scatter_pids()
        child = os.fork()
        if child == 0:
            raise Forked(become, request, fds, self.setting, rlimits)
        return Child(child, self.tribe)

    def forget(self) -> None:
        """The template's program will not run again."""
        if self.template is not None:
            self.template.close()
            self.template = None


class Template:
    """The zygote's handle of a template. It is a `watch.WatchedRun`, for the current run."""

    def __init__(self, request: Request, fds: list[int], setting: ChildSetup, tribe: Tribe) -> None:
        """Fork it for the request of its first run. `series`: the program, and how many runs are expected."""
        self.key, left = request["series"]
        self.same = {name: request[name] for name in _SAME}
        self.tribe = tribe
        self.alive = True
        self._lineage = os.open(f"/proc/self/task/{os.getpid()}/children", os.O_RDONLY | os.O_CLOEXEC)
        self._runs, runs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # No pipe: that could be opened once more through /proc.
        self._reports, reports = (s.detach() for s in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        procfs.scatter_pids()
        self.pid = os.fork()
        if self.pid == 0:
            self._runs.close()
            os.close(self._reports)
            ends = _Ends(socket.SocketType(fileno=runs.detach()), reports)
            raise Forked(_serve, request, fds, setting, ends, left)
        runs.close()
        os.close(reports)

    def fits(self, request: Request) -> bool:
        """Return whether it can do this run."""
        same = all(request[name] == value for name, value in self.same.items())
        return self.alive and self.key == request["series"][0] and same

    def go(self, fds: list[int]) -> None:
        """Hand a run to a spare."""
        procfs.scatter_pids()  # also for what the run itself will start
        with suppress(BrokenPipeError, ConnectionResetError):  # it died: `end` sees it
            socket.send_fds(self._runs, [_GO], fds)

    def fileno(self) -> int:
        """A descriptor that becomes readable when the current run or the template has ended."""
        return self._reports

    def members(self) -> list[int]:
        """Return the tribe's pids outside the template's own session: a run begins one of its own."""
        return [pid for pid in self.tribe.members() if not self._waits(pid)]

    def _waits(self, pid: int) -> bool:
        try:
            return os.getsid(pid) == self.pid
        except ProcessLookupError:
            return False

    def end(self, outcome: RunOutcome) -> None:
        """Record the run's end; if the run was ended, or left processes behind, the template is ended too."""
        report = b""
        if not outcome.cause:
            with suppress(ConnectionResetError):
                report = os.read(self._reports, _ENDED.size)
        if report:
            status, cpu_s, memory_bytes = _ENDED.unpack(report)
            outcome.set_status(status)
            outcome.add(cpu_s, memory_bytes)
        if not report or self._children() != [self.pid]:
            self._tear_down(outcome)

    def _children(self) -> list[int]:
        """Return the zygote's children: the template, and what a run left behind."""
        text = b""
        while chunk := os.pread(self._lineage, 8192, len(text)):
            text += chunk
        return list(map(int, text.split()))

    def close(self) -> None:
        """End it and its spares; there must be no current run."""
        if self.alive:
            self._tear_down(RunOutcome())

    def _tear_down(self, outcome: RunOutcome) -> None:
        """The template dies first, so that no spare is forked any more; all that it had are our children then."""
        self.alive = False
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        known = {pid: False for pid in self._children() if self._waits(pid)}
        self._runs.close()  # which ends the spares
        os.close(self._reports)
        os.close(self._lineage)
        end_all(self.tribe, outcome, known)


class _Ends(NamedTuple):
    """A template's ends of what connects it with the zygote."""

    runs: socket.SocketType
    """Read by the process that does the next run; the other end is closed when no more will come."""
    reports: int
    """Held by the template alone, so that its death is the end of it."""


def _serve(given: list[Any]) -> Following:
    """Start runs in the template, and report how each ended. Frees what a spare would otherwise have to free."""
    request, fds, setting, ends, left = given
    given.clear()
    request = {**request, "files": ()}  # those are looked at once, by the run that they were placed for
    try:
        linux.die_with_parent()
        native = is_native_request(request)
        if native and setting.how.tier == "A":
            _spawn_all(request, fds, setting, ends)
            os._exit(0)
        os.setsid()
        restrain(setting.how, plan_rlimits(setting.how, request["limits"]), native=native)
        keep_only_identity(setting.how)
        code = None if native else _runner.kept(fds[_runner.CODE_FD])
        for fd in fds:
            os.close(fd)
        spare = (_await_native, [request, setting, ends]) if native else _plan_spare(setting, ends, code)
        runs, reports = ends
        del request, fds, ends, code
        gc.freeze()
        if _keep_spares(reports, left):
            return spare
        runs.recv(1)
    except BaseException as error:
        fail(setting, error)
    os._exit(0)


def _plan_spare(setting: ChildSetup, ends: _Ends, code: types.CodeType | None) -> Following:
    """Return the step of a spare for a Python program, with all that it needs looked up."""
    how = setting.how
    os.closerange(0, STREAMS)  # where a run's descriptors will be, as they are the lowest
    _runner.make_ready()
    _held.extend((ends, setting))
    return _await_python, [*ends, setting, (*os.path.split(how.work), how.uid, how.library, how.tier != "A"), [code]]


def _spawn_all(request: Request, fds: list[int], setting: ChildSetup, ends: _Ends) -> None:
    """Start runs with the program's identity, which counts us as one of its processes."""
    limits = {**request["limits"], "processes": request["limits"]["processes"] + 1}
    restrain(setting.how, plan_rlimits(setting.how, limits), native=True)
    confine_program(setting.how, (), tool=toolchain_program(request))
    while True:
        for fd in fds:
            os.close(fd)
        go, fds = linux.recv_fds(ends.runs, len(_GO), _GO_FDS)
        if not go:
            return
        os.chdir(setting.how.work)  # which may be another since the last run
        _, status, usage = os.wait4(_spawn(request, fds, setting), 0)
        os.write(ends.reports, _pack(status, usage))


def _spawn(request: Request, fds: list[int], setting: ChildSetup) -> int:
    path = request["argv"][0] if request["program"] is None else f"/proc/self/fd/{fds[request['program']]}"
    streams = fds[: 5 if request["harness"] else 3]
    actions = [(os.POSIX_SPAWN_DUP2, fd, target) for target, fd in enumerate(streams)]
    environment = setting.environment | dict(request["environment"])
    return os.posix_spawn(path, request["argv"], environment, file_actions=actions, setsid=True)


def _pack(status: int, usage: resource.struct_rusage) -> bytes:
    return _ENDED.pack(status, usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10)


def _keep_spares(reports: int, left: int) -> bool:
    """Returns True in a spare; in the template, False when all runs have been."""
    _pack(reports, resource.getrusage(resource.RUSAGE_SELF))  # what a first report leaves behind, before any spare
    spares = 0
    while left:
        while spares < SPARES and spares < left:
            procfs.scatter_pids()
            if _fork() == 0:
                return True
            spares += 1
        _, status, usage = _wait4(-1, 0)
        _write(reports, _pack(status, usage))
        del usage
        left, spares = left - 1, spares - 1
    return False


def _await_python(given: list[Any]) -> Following:
    """Wait in a spare for a run, then become it.

    It ends when the other end is closed, since no run will come. The code is terse because each object that it touches
    is on a page that is then copied.
    """
    runs, reports, setting, identity, codes = given
    try:
        _close(reports)
        go, rights, _, _ = runs.recvmsg(1, _ROOM)
        if not go:
            _exit(0)
        runs.close()
        if rights[0][2][:_IN_PLACE_BYTES] != _IN_PLACE:
            raise OSError(errno.EBADF, f"the descriptors of a run came as {rights}")
        take_on(*identity)
    except BaseException as error:
        fail(setting, error)
    return _runner.run_job, codes


def _await_native(given: list[Any]) -> Following:
    """The same for a native program."""
    request, setting, ends = given
    try:
        os.close(ends.reports)
        go, fds = linux.recv_fds(ends.runs, len(_GO), _GO_FDS)
        if not go:
            os._exit(0)
        ends.runs.close()
    except BaseException as error:
        fail(setting, error)
    return turn(request, fds, setting)
