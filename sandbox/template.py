"""One program, many cases: a process that holds what its runs share, and forks each run before it is wanted.

    zygote ── template ─┬─ the run in hand
                        └─ spare: forked, confined, waiting for the next run's descriptors

A run then starts at once, in a fresh process as ever, and the next fork goes on beside it. Template and spares keep the
zygote's uid until a run is handed to them, so no program can signal, trace or limit them; they have Landlock, the
seccomp filter, the limits and no capability but to become the program. They execute nothing of the program before that.
"""

from __future__ import annotations

import gc
import marshal
import os
import signal
import socket
import struct
import types
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NoReturn

from sandbox import _runner, linux
from sandbox.child import Request, Setting, fail, is_native, turn
from sandbox.confine import Confinement, Rlimits, keep_only_identity, restrain
from sandbox.watch import Outcome, Tribe, end_all

SPARES: Final = 2  # one for the run in hand, one that is forked meanwhile
_ENDED: Final = struct.Struct("=idq")  # wait status, CPU seconds, peak memory in bytes
_GO_MAX: Final = 128 << 10
_GO_FDS: Final = 32
_SENT: Final = ("mode", "argv", "program", "environment", "harness", "with_tools")


def possible(how: Confinement) -> bool:
    """Programs have a uid that is not ours, and the kernel lists a process's children."""
    return how.uid is not None and os.geteuid() == 0 and os.path.exists(f"/proc/self/task/{os.getpid()}/children")


class Template:
    """The zygote's hold on one. It is a `watch.Run`, for the one run that is in hand."""

    def __init__(self, request: Request, fds: list[int], setting: Setting, rlimits: Rlimits, tribe: Tribe) -> None:
        """Fork it, from the request of its first run. `series` says whose it is and how many runs are expected."""
        self.key, left = request["series"]
        self.limits = request["limits"]
        self.tribe = tribe
        self.alive = True
        self._lineage = os.open(f"/proc/self/task/{os.getpid()}/children", os.O_RDONLY | os.O_CLOEXEC)
        self.sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = os.fork()
        if self.pid == 0:
            self.sock.close()
            _serve(request, fds, setting, rlimits, theirs, left)
        theirs.close()

    def fits(self, request: Request) -> bool:
        """It can do this run."""
        return self.alive and self.key == request["series"][0] and self.limits == request["limits"]

    def go(self, request: Request, fds: list[int]) -> None:
        """Hand a run to a spare."""
        data = marshal.dumps({name: request[name] for name in _SENT})
        with suppress(BrokenPipeError, ConnectionResetError):  # it died: `end` sees it
            socket.send_fds(self.sock, [data], fds)

    def fileno(self) -> int:
        """Readable when the run in hand has ended, or the template has."""
        return self.sock.fileno()

    def members(self) -> list[int]:
        """Of the tribe, those that are not in the template's own session: a run begins one of its own."""
        return [pid for pid in self.tribe.members() if not self._waits(pid)]

    def _waits(self, pid: int) -> bool:
        try:
            return os.getsid(pid) == self.pid
        except ProcessLookupError:
            return False

    def end(self, outcome: Outcome) -> None:
        """Take in the run's end; where it was ended, or left something behind, nothing stays, template included."""
        report = b""
        if not outcome.cause:
            with suppress(ConnectionResetError):  # it died with a run unread
                report = self.sock.recv(_ENDED.size)
        if report:
            status, cpu_s, memory_bytes = _ENDED.unpack(report)
            outcome.set_status(status)
            outcome.add(cpu_s, memory_bytes)
        if not report or self._children() != [self.pid]:
            self._tear_down(outcome)

    def _children(self) -> list[int]:
        """Of the zygote: the template, and what a run left behind."""
        text = b""
        while chunk := os.pread(self._lineage, 8192, len(text)):
            text += chunk
        return list(map(int, text.split()))

    def close(self) -> None:
        """End it and its spares; nothing may be in hand."""
        if self.alive:
            self._tear_down(Outcome())

    def _tear_down(self, outcome: Outcome) -> None:
        """The template dies first, so that no spare is forked any more; all that it had are our children then."""
        self.alive = False
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        known = {pid: False for pid in self._children() if self._waits(pid)}
        self.sock.close()  # which ends the spares
        os.close(self._lineage)
        end_all(self.tribe, outcome, known)


def _serve(
    request: Request, fds: list[int], setting: Setting, rlimits: Rlimits, sock: socket.socket, left: int
) -> NoReturn:
    """In the template: keep spares at hand, and tell how each run ended."""
    try:
        linux.die_with_parent()
        os.setsid()
        native = is_native(request)
        restrain(setting.how, rlimits, native=native)
        keep_only_identity(setting.how)
        code = None if native else _runner.kept(fds[_runner.CODE_FD])
        for fd in fds:
            os.close(fd)
        gc.freeze()

        def fork() -> None:
            parent = os.getpid()
            if os.fork() == 0:
                _await_run(setting, sock, code, parent)

        _keep_spares(sock, left, fork)
    except BaseException as error:
        fail(setting, error)
    os._exit(0)


def _keep_spares(sock: socket.socket, left: int, fork: Callable[[], None]) -> None:
    for _ in range(min(SPARES, left)):
        fork()
    while left:
        _, status, usage = os.wait4(-1, 0)
        sock.send(_ENDED.pack(status, usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10))
        left -= 1
        if left >= SPARES:
            fork()
    sock.recv(1)  # until we are let go


def _await_run(setting: Setting, sock: socket.socket, code: types.CodeType | None, parent: int) -> NoReturn:
    """In a spare: wait for a run, then be it."""
    try:
        linux.die_with_parent(parent)  # and again with the program's uid, which clears it
        if code is not None:
            _runner.rehearse()
        data, fds = linux.recv_fds(sock, _GO_MAX, _GO_FDS)
        if not data:
            os._exit(0)
        request: dict[str, Any] = marshal.loads(data)
    except BaseException as error:
        fail(setting, error)
    turn(request, fds, setting, code)
