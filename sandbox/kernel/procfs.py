"""What whoever keeps a jail does through /proc: look at all processes of it, and choose where pids go on.

In tier A a program's own /proc shows it no process of ours: those would tell it how many runs were before. So the
keeper's is another, which has no name.
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
    """Where this process reads what is at `path` below /proc."""
    return f"{_root}/{path}"


def look_through(place: int, last_pid: int) -> None:
    """From here on, read below the directory `place`; `last_pid` is where `scatter_pids` writes, or -1."""
    global _root, _last_pid
    _root, _last_pid = f"/proc/self/fd/{place}", last_pid
    try:
        scatter_pids()
    except OSError:  # it wants a capability that is not ours here
        os.close(last_pid)
        _last_pid = -1


def open_last_pid(proc: str) -> int:
    """For `look_through`; -1 where the kernel has nothing there."""
    with suppress(OSError):
        return os.open(f"{proc}/{_PIDS}", os.O_WRONLY | os.O_CLOEXEC)
    return -1


def scattered() -> bool:
    """This process may choose where pids go on."""
    return _last_pid >= 0


def scatter_pids() -> None:
    """Let the next process have a pid that says nothing of those before it: chosen by chance, for two runs may be
    prepared at a time and cannot both have the same. Does nothing where pids are the machine's.
    """
    if _last_pid >= 0:
        chance = os.urandom(2)
        os.pwrite(_last_pid, b"%d" % (_LOWEST + (chance[0] << 8 | chance[1]) % 30_000), 0)
