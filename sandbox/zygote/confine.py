"""The steps from a trusted fork to a confined program: `restrain`, then `confine_program`. All succeed, or nothing
runs.

no_new_privs, the seccomp filter and the namespaces are inherited from the zygote.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from sandbox.kernel import landlock, linux, procfs

HIGH: Final = 200  # descriptors from here up are ours; the program's are 0 to 5
STREAMS: Final = 6  # in, out, err, job, result, code: below this the zygote may have no descriptor
Rlimits = tuple[tuple[int, int], ...]
_CAP_DAC_READ_SEARCH, _CAP_SETUID, _CAP_CHECKPOINT_RESTORE = 1 << 2, 1 << 7, 1 << 40
_SIGNALS_PENDING: Final = 1024  # timers too; the kernel counts those of a whole uid
_TASKS_TO_COME: Final = 512
_RESERVED_BYTES: Final = 32 << 30  # what is asked for and never touched is no memory, but more is no honest request
_LIMITED: Final = (
    resource.RLIMIT_CPU, resource.RLIMIT_DATA, resource.RLIMIT_STACK, resource.RLIMIT_FSIZE,
    resource.RLIMIT_NPROC, resource.RLIMIT_NOFILE, resource.RLIMIT_MSGQUEUE,
    resource.RLIMIT_MEMLOCK, resource.RLIMIT_SIGPENDING,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Confinement:
    """The means by which this jail confines a child; made once, when the jail is entered."""

    tier: str
    work: str
    uid: int | None
    """The uid of programs, or None to keep the zygote's (which is then not root, or the tier is C)."""
    ruleset: int | None
    """Landlock ruleset descriptor."""
    hard: dict[int, int] = field(default_factory=lambda: {what: resource.getrlimit(what)[1] for what in _LIMITED})
    """Hard limits of this process: a program's cannot be higher."""
    closed: tuple[str, ...] = ()
    """Toolchains under a directory closed to other uids: these keep CAP_DAC_READ_SEARCH. Landlock still rules."""
    library: int = 1 << 20
    """Python programs keep the descriptors from here on, to import from."""
    frozen: ctypes.Structure | None = None
    """A filter that every run adds to the jail's."""
    network: bool = False
    """Programs may make sockets, in a network namespace of their own."""


def restrain(how: Confinement, rlimits: Rlimits, *, native: bool) -> None:
    """First half: what holds for every run of a program, and does not need its identity."""
    _prefer_as_oom_victim()
    for what, value in rlimits:
        # A program may ask for more stack, as many do: it takes memory like any other.
        resource.setrlimit(what, (value, how.hard[what] if what == resource.RLIMIT_STACK else value))
    if how.ruleset is not None:
        landlock.restrict(how.ruleset)
    if how.frozen is not None:
        linux.set_seccomp(how.frozen)
    _reset_signals(native=native)


def confine_program(how: Confinement, streams: Sequence[int], *, tool: str = "") -> None:
    """Second half: become a program's process.

    `streams` become descriptors 0, 1, 2 and so on, and are above those. `tool`: what it executes, where that belongs to
    a toolchain.
    """
    os.setsid()
    parent, work = os.path.split(how.work)
    os.chdir(parent)  # which may be in a directory of root's; the program's own in it may be closed to us
    for target, fd in enumerate(streams):
        os.dup2(fd, target)
    _drop_identity(how, tool)
    os.chdir(work)
    if how.tier != "A":  # in tier A they die with pid 1
        linux.die_with_parent()  # after the uid change, which clears it


def high(fd: int) -> int:
    """Move the descriptor out of the range of a child's own descriptors."""
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, HIGH)
    os.close(fd)
    return moved


def _prefer_as_oom_victim() -> None:
    """Let the kernel's OOM killer prefer the program to the zygote in the same cgroup, and to everything else."""
    with suppress(OSError):  # no /proc here; the limits hold without it
        fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        try:
            os.write(fd, b"1000")
        finally:
            os.close(fd)


def plan_rlimits(how: Confinement, limits: dict[str, Any]) -> Rlimits:
    """The resource limits of a run, worked out before the fork."""
    # The backstop: the watcher's limit is exact and comes first, though the kernel counts this one in ticks.
    cpu = int(1.25 * limits["cpu_s"]) + 2
    wanted = (
        (resource.RLIMIT_CPU, cpu),
        (resource.RLIMIT_DATA, limits["memory_bytes"] + _RESERVED_BYTES),
        (resource.RLIMIT_STACK, limits["stack_bytes"]),
        (resource.RLIMIT_FSIZE, max(limits["file_bytes"], limits["output_bytes"] + 1)),
        (resource.RLIMIT_NPROC, limits["processes"] + _tasks_beside(how)),
        (resource.RLIMIT_NOFILE, limits["open_files"]),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_MEMLOCK, 64 << 10),
        (resource.RLIMIT_SIGPENDING, _SIGNALS_PENDING),
    )
    return tuple((what, _at_most(value, how.hard[what])) for what, value in wanted)


def _tasks_beside(how: Confinement) -> int:
    """Count the tasks of the same user, which RLIMIT_NPROC counts too where a program has no uid or namespace of its
    own. Adds a margin for tasks that the user starts meanwhile, so this is only the backstop; the watcher enforces the
    limit.
    """
    user = os.geteuid()
    if how.uid is not None or how.tier == "A" or user == 0:
        return 0
    count = _TASKS_TO_COME
    with suppress(OSError), os.scandir("/proc") as entries:  # where it is not shown, the bare limit holds
        for entry in entries:
            with suppress(OSError):
                if entry.name.isdigit() and entry.stat().st_uid == user:
                    count += os.stat(f"/proc/{entry.name}/task").st_nlink - 2
    return count


def _at_most(value: int, hard: int) -> int:
    if resource.RLIM_INFINITY in (value, hard):  # which is -1
        return max(value, hard)
    return min(value, hard)


def _drop_identity(how: Confinement, tool: str) -> None:
    """The zygote has the program's group already. Leaving uid 0 drops every capability, unless it is kept."""
    keep = tool.startswith(tuple(f"{root}/" for root in how.closed)) or tool in how.closed
    if keep:
        linux.prctl(linux.PR_SET_KEEPCAPS, 1)
    root = os.getuid() == 0
    if how.uid is not None and root:
        os.setresuid(how.uid, how.uid, how.uid)
    if keep:
        linux.set_capabilities(_CAP_DAC_READ_SEARCH, through_exec=True)
    elif how.tier != "C" and not root:
        linux.set_capabilities(0)


def keep_only_identity(how: Confinement) -> None:
    """Drop every capability except what `confine_program` uses, and the one to choose where pids continue."""
    pids = _CAP_CHECKPOINT_RESTORE if procfs.scattered() else 0
    linux.set_capabilities(_CAP_SETUID | pids | (_CAP_DAC_READ_SEARCH if how.closed else 0))


def _reset_signals(*, native: bool) -> None:
    """Restore the default signal handling that a program expects."""
    signal.signal(signal.SIGINT, signal.SIG_DFL if native else signal.default_int_handler)
    if native:
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
