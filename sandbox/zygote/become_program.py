"""Turn a fork of the zygote into the program, in one go or in two halves.

    in one go     restrain ─▶ turn ─▶ the program                               compilations, the first run of a program
    in halves     restrain ─▶ fork ─▶ wait for the run ─▶ turn ─▶ the program   its other runs (template.py)

A Python program can read the frames below its own, which would reveal earlier runs. So a fork does not continue where
it was made: it raises `Forked`, and begins again at `live`, with only what it needs.

Failures on the way are reported to the worker as failures of the sandbox, unless the kernel refuses the program's
binary.
"""

from __future__ import annotations

import errno
import gc
import os
import socket
import time
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from sandbox.kernel import linux
from sandbox.pyharness import _runner
from sandbox.zygote.confine import HIGH, STREAMS, Confinement, confine_program, restrain

Request = dict[str, Any]
Step = Callable[[list[Any]], "Following | None"]
Following = tuple[Step, list[Any]]
"""The next step of a process, after the frames of the step before have ended, and its arguments."""
NOT_RUN: Final = 126
"""The exit code of a binary that the kernel refuses, as shells give it."""
_chdir, _closerange, _setresuid, _setsid = os.chdir, os.closerange, os.setresuid, os.setsid
_die_with_parent, _let_watch, _enable_gc = linux.die_with_parent, linux.let_watch, gc.enable


@dataclass(frozen=True, slots=True)
class ChildSetup:
    """Settings that all children of one zygote share."""

    how: Confinement
    environment: dict[str, str]
    error_fd: int
    """Descriptor for error messages of a child."""


class Forked(BaseException):
    """Raised in a fork: ends all frames that existed before it, and continues with `step`."""

    def __init__(self, step: Step, *given: Any) -> None:
        super().__init__()
        self.step, self.given = step, list(given)


def live(step: Step) -> None:
    """Run a step and the steps that follow. The only frame below every program: it holds nothing of a run."""
    _runner.count_below()
    following: Following | None = (step, [])
    while following is not None:
        try:
            following = following[0](following[1])
        except Forked as forked:
            following = forked.step, forked.given


def become(given: list[Any]) -> Following:
    """Confine the calling process and make it the program."""
    request, fds, setting, rlimits = given
    given.clear()
    gc.collect()  # cyclic garbage of earlier runs would reveal their number
    try:
        restrain(setting.how, rlimits, native=is_native_request(request))
    except BaseException as error:
        fail(setting, error)
    return turn(request, fds, setting)


def take_on(parent: str, work: str, uid: int, library: int, dies: bool) -> None:
    """Become a Python program, with its streams in place and the steps that are done once per template.

    Its names are those of this module, because each further object is one more page that a fork must copy.
    """
    _setsid()
    _chdir(parent)  # which may be in a directory of root's; the program's own in it is closed to us
    _setresuid(uid, uid, uid)
    _chdir(work)
    if dies:
        _die_with_parent()
    _let_watch()
    _closerange(STREAMS, library)
    _enable_gc()


def turn(request: Request, fds: list[int], setting: ChildSetup, code: types.CodeType | None = None) -> Following:
    """Take the run's streams and the program's identity, and begin. `code`: the Python program, if it is here."""
    try:
        if is_native_request(request):
            _execute(request, fds, setting)
        confine_program(setting.how, fds[:STREAMS])
        linux.let_watch()
        _check_files(request)
        if request["mode"] == "probe":
            try_to_escape(setting.how)
            os._exit(0)
        os.closerange(STREAMS, setting.how.library)
        _runner.make_ready()
        gc.enable()
    except BaseException as error:
        fail(setting, error)
    return _runner.run_job, [code]


def _check_files(request: Request) -> None:
    """Check, with the program's identity, that its files are complete and readable. Raises OSError."""
    for name, _, size in request.get("files", ()):  # a spare's run has none but a runtime's
        found = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        if os.fstat(found).st_size != size:
            raise OSError(errno.EIO, f"{name} differs from what was written")
        os.close(found)


def is_native_request(request: Request) -> bool:
    return bool(request["mode"] == "exec")


def toolchain_program(request: Request) -> str:
    """Return the program of a toolchain that it executes; "" for a program of its own."""
    return str(request["argv"][0]) if request["with_tools"] else ""


def fail(setting: ChildSetup, error: BaseException) -> NoReturn:
    """Report the error, and exit."""
    os.write(setting.error_fd, f"{type(error).__name__}: {error}".encode()[:4000])
    os._exit(126)


def _execute(request: Request, fds: list[int], setting: ChildSetup) -> NoReturn:
    program = HIGH if request["program"] is None else fds[request["program"]]
    streams = 5 if request["harness"] else 3
    confine_program(setting.how, fds[:streams], tool=toolchain_program(request))
    _check_files(request)
    os.closerange(streams, program)
    os.closerange(program + 1, HIGH)  # from there up, every descriptor closes itself
    environment = setting.environment | dict(request["environment"])
    if program == HIGH:
        os.execve(request["argv"][0], request["argv"], environment)  # a tool of ours
    try:
        os.execve(program, request["argv"], environment)
    except OSError as error:
        os.write(2, f"cannot be run: {error.strerror}\n".encode())
        os._exit(NOT_RUN)


def try_to_escape(how: Confinement) -> None:
    """Attempts of `RequestLoop.prove`: each must fail in a confined child."""
    if 0 in (*os.getresuid(), *os.getresgid(), *os.getgroups()):
        raise AssertionError("the program would run as root")
    tier, family = how.tier, socket.AF_UNIX if how.network else socket.AF_INET
    for what, attempt in (
        ("open a socket", lambda: socket.socket(family, socket.SOCK_DGRAM)),
        ("write to /", lambda: os.open("/escape", os.O_CREAT | os.O_WRONLY)),
        ("read /etc/passwd", lambda: os.open("/etc/passwd", os.O_RDONLY)),
        ("see the zygote", lambda: os.listdir("/proc/1/task"))
        if tier == "A"  # there it is pid 1 of a namespace, which takes no signal from inside
        else ("signal the zygote", lambda: os.kill(os.getppid(), 0)),
        ("time its keeper", lambda: time.clock_gettime((~os.getppid() << 3) | 2)),
        ("unshare", lambda: linux.unshare(linux.CLONE_NEWUSER)),
    ):
        try:
            attempt()
        except OSError:
            continue
        raise AssertionError(f"a confined program could {what}")
