"""The steps a forked child takes from trusted to confined, in order. Every step must succeed, or nothing runs.

no_new_privs, the seccomp filter and the namespaces are the zygote's already, and inherited.
"""

from __future__ import annotations

import fcntl
import os
import resource
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sandbox import landlock, linux

HIGH: Final = 200  # descriptors from here up are ours; the program's are 0 to 4
_CAP_DAC_READ_SEARCH: Final = 1 << 2


@dataclass(frozen=True, slots=True)
class Confinement:
    """How this jail confines a child; made once, when the jail is entered."""

    tier: str
    work: str
    uid: int | None
    """The uid a program gets, or None to keep ours (which is then not root, or the tier is C)."""
    ruleset: int | None
    """Landlock ruleset descriptor."""
    read_past_permissions: bool = False
    """Keep CAP_DAC_READ_SEARCH: the interpreter lies under a directory closed to other uids. Landlock still rules."""
    tools_past_permissions: bool = False
    """The same for compilers and runtimes that are executed; a program's own binary never keeps it."""


def confine(
    how: Confinement, limits: dict[str, Any], streams: Sequence[int], *, native: bool, with_tools: bool = False
) -> None:
    """Confine the calling process. `streams` become descriptors 0 to 4: in, out, err, job, result."""
    os.setsid()
    os.chdir(how.work)
    _place_streams(streams)
    _prefer_as_oom_victim()
    _set_limits(limits, native=native)
    _drop_identity(how, with_tools=with_tools)
    linux.die_with_parent()  # after the uid change, which clears it
    if how.ruleset is not None:
        landlock.restrict(how.ruleset)
    _reset_signals(native=native)


def _place_streams(streams: Sequence[int]) -> None:
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, HIGH) for fd in streams]
    for target, fd in enumerate(high):
        os.dup2(fd, target, inheritable=True)


def _prefer_as_oom_victim() -> None:
    try:
        fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
    except OSError:
        return  # no /proc here; the limits stand without it
    try:
        os.write(fd, b"1000")
    finally:
        os.close(fd)


def _set_limits(limits: dict[str, Any], *, native: bool) -> None:
    memory, stack = limits["memory_bytes"], limits["stack_bytes"]
    cpu = int(limits["cpu_s"]) + 2  # the backstop; the watcher's limit is exact and comes first
    data = memory + limits["headroom_bytes"] + (stack if native else 0)
    space = data + (1 << 30) if limits["address_space"] else resource.RLIM_INFINITY
    for what, value in (
        (resource.RLIMIT_CPU, cpu),
        (resource.RLIMIT_DATA, data),
        (resource.RLIMIT_AS, space),
        (resource.RLIMIT_STACK, stack),
        (resource.RLIMIT_FSIZE, max(limits["file_bytes"], limits["output_bytes"] + 1)),
        (resource.RLIMIT_NPROC, limits["processes"]),
        (resource.RLIMIT_NOFILE, limits["open_files"]),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_MEMLOCK, 64 << 10),
    ):
        hard = resource.getrlimit(what)[1]
        value = (
            value if hard == resource.RLIM_INFINITY else hard if value == resource.RLIM_INFINITY else min(value, hard)
        )
        resource.setrlimit(what, (value, value))


def _drop_identity(how: Confinement, *, with_tools: bool) -> None:
    """The zygote has the program's group already. Leaving uid 0 drops every capability, unless it is kept."""
    with_tools = with_tools and how.tools_past_permissions
    keep = how.read_past_permissions or with_tools
    if keep:
        linux.prctl(linux.PR_SET_KEEPCAPS, 1)
    root = os.getuid() == 0
    if how.uid is not None and root:
        os.setresuid(how.uid, how.uid, how.uid)
    if keep:
        linux.set_capabilities(_CAP_DAC_READ_SEARCH, through_exec=with_tools)
    elif how.tier != "C" and not root:
        linux.set_capabilities(0)


def _reset_signals(*, native: bool) -> None:
    if native:  # an interpreter has its own ways with these; a program expects the defaults
        for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
