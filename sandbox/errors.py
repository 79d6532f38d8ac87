"""Our own faults. What a program did wrong is a Verdict, never one of these."""

from __future__ import annotations

import errno
from typing import Final, TypeGuard


class SandboxError(Exception):
    """The sandbox failed, not the program. Samples with this error are masked, never scored."""


class InvalidProblem(SandboxError, ValueError):
    """The problem cannot be judged as it is; the message names field, value and way out."""


class InvalidProgram(SandboxError, ValueError):
    """The files of a program cannot be in one directory; the caller who composed them is at fault."""


class WrongType(InvalidProblem, InvalidProgram, TypeError):
    """An argument is of the wrong type; the message names the argument, what it got, and the form that is expected."""


class CheckerError(SandboxError):
    """A problem's checker or interactor does not compile, crashes, exceeds a limit or gives no decision."""


class ToolchainMissing(SandboxError):
    """A language's compiler or interpreter is not installed."""


class IsolationUnavailable(SandboxError):
    """The machine cannot isolate as strongly as asked."""


class AccessDenied(SandboxError, PermissionError):
    """A server wants another token: no further try helps."""


class Starved(SandboxError):
    """The machine was so slow, or so short of memory, that a run's end shows nothing about the program; another try may
    help.
    """


class WorkerDied(SandboxError):
    """A sandbox process died, or stopped answering, under a job."""


class WorkerHung(WorkerDied):
    """A worker exceeded the sum of all limits of its job, with the margin for an overloaded machine, and was killed."""


class TookDown(WorkerDied):
    """Judges died TRIES_MAX times with the program in a jail: a control program decides who is at fault."""


class HeldUp(TookDown):
    """Judges hung HANGS_MAX times with the program in a jail: after the control program, one more hang decides."""


TRIES_MAX: Final = 3
STARVED_MAX: Final = 2
HANGS_MAX: Final = 2
EARLY_MAX: Final = 6


class Deaths:
    """Counts the deaths of judges under one job.

    A death before the program is in a jail does not count against the program. Chance kills a worker in a moment
    (memory, a signal), but makes it hang only if the machine stops for longer than every margin; so fewer hangs
    decide, and each costs a whole deadline. A starved run does not count: it is tried again.
    """

    def __init__(self, hangs_max: int = HANGS_MAX) -> None:
        self.hangs_max = hangs_max
        self.early = self.handed = self.hung = self.starved = 0

    def add(self, error: SandboxError, *, handed: bool) -> SandboxError | None:
        """Count one death. Returns the error to raise if the job is not to be tried again."""
        if isinstance(error, Starved):
            self.starved += 1
            return error if self.starved == STARVED_MAX else None
        if not handed:
            self.early += 1
            return error if self.early == EARLY_MAX else None
        self.handed += 1
        self.hung += isinstance(error, WorkerHung)
        if self.hung == self.hangs_max:
            return HeldUp(str(error))
        return TookDown(str(error)) if self.handed == TRIES_MAX else None


class ProtocolError(SandboxError):
    """A sandbox process sent a message that cannot be read."""


class ProblemLost(SandboxError):
    """A problem did not reach the process that judges; it is sent again with the next job."""


class PoolClosed(SandboxError):
    """The pool is closed, or was closed while its caller waited."""


class Cancelled(SandboxError):
    """The job was cancelled by its owner."""


_BY_NAME: Final[dict[str, type[SandboxError]]] = {
    name: found for name, found in globals().items() if isinstance(found, type) and issubclass(found, SandboxError)
}


def to_wire(error: BaseException) -> dict[str, str]:
    """Return an exception as the plain dict that crosses between sandbox processes."""
    if isinstance(error, SandboxError):
        return {"type": type(error).__name__, "message": str(error)}
    return {"type": "SandboxError", "message": f"{type(error).__name__}: {error}"}


def from_wire(data: dict[str, str]) -> SandboxError:
    """The inverse of `to_wire`."""
    return _BY_NAME.get(data["type"], SandboxError)(data["message"])


_WAYS_OUT: Final = {
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.ENFILE: "this machine has no open file left: end other programs, or raise fs.file-max",
    errno.EAGAIN: "raise the limit on processes (ulimit -u, or that of the container), or use fewer workers",
    errno.ENOMEM: "free memory, or use fewer workers",
    errno.ENOSPC: "free space there, or set TMPDIR to another folder",
    errno.EDQUOT: "free space there, or set TMPDIR to another folder",
    errno.EROFS: "set TMPDIR to a folder that can be written to",
    errno.EFBIG: "raise the limit on file sizes (ulimit -f)",
}


def is_shortage(error: BaseException) -> TypeGuard[OSError]:
    """Return whether the machine, or this process, has run out of something: no program is at fault."""
    return isinstance(error, OSError) and error.errno in _WAYS_OUT


def way_out(error: BaseException) -> str:
    """Return "; " and what to do against a shortage, or "" where that is not known."""
    return f"; {_WAYS_OUT[error.errno or 0]}" if is_shortage(error) else ""


def not_started(what: str, error: OSError) -> str:
    """Return one line for what the machine could not start: what, why, and a way out where one is known."""
    where = f" in {error.filename}" if error.filename else ""
    return f"{what} cannot be started: {error.strerror or error}{where}{way_out(error)}"
