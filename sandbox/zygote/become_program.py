"""From a fork of the zygote to the program: the way that every run takes, in one go or in two halves.

    in one go     restrain ─▶ turn ─▶ the program                               compilations, the first run of a program
    in halves     restrain ─▶ fork ─▶ wait for the run ─▶ turn ─▶ the program   its other runs (template.py)

A Python program can walk the frames below its own, and what they hold would tell it of the runs before. So a fork never
goes on where it was made: it raises `Forked`, and begins again at `live`, with what it needs and nothing else.

Whatever fails on the way is told to the worker, as our fault; but that the kernel will not have the program's own
binary is the program's.
"""

from __future__ import annotations

import errno
import gc
import os
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from sandbox.kernel import linux
from sandbox.pyharness import _runner
from sandbox.zygote import escape_selftest
from sandbox.zygote.confine import HIGH, STREAMS, Confinement, confine_program, restrain

Request = dict[str, Any]
Step = Callable[[list[Any]], "Following | None"]
Following = tuple[Step, list[Any]]
"""What a process does next, when the frames of the step before have ended, and with what."""
NOT_RUN: Final = 126
"""The exit code of a binary that the kernel refuses, as shells give it."""
_chdir, _closerange, _setresuid, _setsid = os.chdir, os.closerange, os.setresuid, os.setsid
_die_with_parent, _let_watch, _enable_gc = linux.die_with_parent, linux.let_watch, gc.enable


@dataclass(frozen=True, slots=True)
class ChildSetup:
    """What all children of one zygote share."""

    how: Confinement
    environment: dict[str, str]
    voice: int
    """Where a child complains."""


class Forked(BaseException):
    """In a fork: end all frames that were there before it, and do `step` instead."""

    def __init__(self, step: Step, *given: Any) -> None:
        super().__init__()
        self.step, self.given = step, list(given)


def live(step: Step) -> None:
    """Do it, and what follows. The one frame of ours below every program: it holds nothing of a run."""
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
    gc.collect()  # what earlier runs left in circles would count them
    try:
        restrain(setting.how, rlimits, native=is_native_request(request))
    except BaseException as error:
        fail(setting, error)
    return turn(request, fds, setting)


def take_on(work: str, uid: int, library: int, dies: bool) -> None:
    """What `turn` does for a Python program, with its streams where they belong and what is done once per template.

    Its names are those of this module, as each further object is one more page that a fork must copy.
    """
    _setsid()
    _chdir(work)
    _setresuid(uid, uid, uid)
    if dies:
        _die_with_parent()
    _let_watch()
    _closerange(STREAMS, library)
    _enable_gc()


def turn(request: Request, fds: list[int], setting: ChildSetup, code: types.CodeType | None = None) -> Following:
    """Take on the run's streams and the program's identity, and begin. `code`: the Python program, if it is here."""
    try:
        if is_native_request(request):
            _execute(request, fds, setting)
        confine_program(setting.how, fds[:STREAMS])
        linux.let_watch()
        _check_files(request)
        if request["mode"] == "probe":
            escape_selftest.try_to_escape(setting.how.tier)
            os._exit(0)
        os.closerange(STREAMS, setting.how.library)
        _runner.make_ready()
        gc.enable()
    except BaseException as error:
        fail(setting, error)
    return _runner.run_job, [code]


def _check_files(request: Request) -> None:
    """With the program's identity: what was placed for it is there, whole and readable. Raises OSError."""
    for name, _, size in request.get("files", ()):  # a spare's run has none but a runtime's
        found = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        if os.fstat(found).st_size != size:
            raise OSError(errno.EIO, f"{name} is not as it was placed")
        os.close(found)


def is_native_request(request: Request) -> bool:
    return bool(request["mode"] == "exec")


def toolchain_program(request: Request) -> str:
    """What of a toolchain it executes; empty for a program of its own."""
    return str(request["argv"][0]) if request["with_tools"] else ""


def fail(setting: ChildSetup, error: BaseException) -> NoReturn:
    """Complain, and end."""
    os.write(setting.voice, f"{type(error).__name__}: {error}".encode()[:4000])
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
