"""The zygote's use of /proc: look at all processes of its jail, and choose where pids continue.

In tier A a program's own /proc shows none of the sandbox's processes: they would reveal how many runs came before. So
the zygote uses another /proc, which has no path.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final

_PIDS: Final = "sys/kernel/ns_last_pid"
_LOWEST: Final = 1000
_root = "/proc"
_last_pid = -1


def at(path: str) -> str:
    """Return the path by which this process reads what is at `path` below /proc."""
    return f"{_root}/{path}"


def look_through(place: int, last_pid: int) -> None:
    """Read below the directory `place` from now on; `last_pid` is where `scatter_pids` writes, or -1."""
    global _root, _last_pid
    _root, _last_pid = f"/proc/self/fd/{place}", last_pid
    try:
        scatter_pids()
    except OSError:  # it needs a capability that is missing here
        os.close(last_pid)
        _last_pid = -1


def open_last_pid(proc: str) -> int:
    """Open the file that sets the last pid, for `look_through`; -1 where the kernel has none."""
    with suppress(OSError):
        return os.open(f"{proc}/{_PIDS}", os.O_WRONLY | os.O_CLOEXEC)
    return -1


def scattered() -> bool:
    """Return whether this process may choose where pids continue."""
    return _last_pid >= 0


def scatter_pids() -> None:
    """Choose the next pid at random, so that it reveals nothing of earlier processes; random because two runs may be
    prepared at the same time. Does nothing where pids are the machine's.
    """
    if _last_pid >= 0:
        chance = os.urandom(2)
        os.pwrite(_last_pid, b"%d" % (_LOWEST + (chance[0] << 8 | chance[1]) % 30_000), 0)
