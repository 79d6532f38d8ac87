"""Run directories: one per pool or jail, named after its owner, and gone when the owner is, however that dies.

The owner only thinks of the name. The process that makes the directory lives through the owner's death and removes it:
a pool's supervisor, or the guard of a jail that stands alone. What is left if that one is killed as well is removed by
the next owner's `reserve_directory`.
"""

from __future__ import annotations

import os
import re
import secrets
import select
import shutil
import signal
import tempfile
from contextlib import suppress
from typing import Final

from sandbox import linux

_PREFIX: Final = "overlap-sandbox-"
_NAME: Final = re.compile(rf"{_PREFIX}(\d+)-(\d+)-.*")


def reserve_directory() -> str:
    """The path of a directory that is not there yet and is this process's to use; removes those of dead owners."""
    sweep()
    pid = os.getpid()
    return os.path.join(tempfile.gettempdir(), f"{_PREFIX}{pid}-{_started(pid)}-{secrets.token_hex(8)}")


def sweep() -> None:
    """Remove the directories of owners that are dead, or whose pid is by now another process's."""
    base = tempfile.gettempdir()
    for name in os.listdir(base):
        found = _NAME.fullmatch(name)
        if found is None or _started(int(found[1])) == int(found[2]):
            continue
        with suppress(OSError):
            if os.lstat(os.path.join(base, name)).st_uid == os.geteuid():
                shutil.rmtree(os.path.join(base, name), ignore_errors=True)


def stand_guard(directory: str, owner: int) -> int:
    """Make `directory`, and fork. Returns in the child only, with the pid of its new parent: the guard, which is us.

    The guard removes the directory when the child has ended, and ends the child when the owner has. For a process
    started by exec and still single-threaded.
    """
    try:
        pidfd = os.pidfd_open(owner)
    except ProcessLookupError:
        os._exit(125)
    if os.getppid() != owner:
        os._exit(125)
    linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
    os.mkdir(directory, 0o700)
    guard = os.getpid()
    child = os.fork()
    if child == 0:
        os.close(pidfd)
        return guard
    try:
        _watch_over(child, pidfd)
    finally:
        end_children(set())
        shutil.rmtree(directory, ignore_errors=True)
        os._exit(0)


def _watch_over(child: int, owner: int) -> None:
    childfd = os.pidfd_open(child)
    for fd in os.listdir("/proc/self/fd"):
        if int(fd) not in (owner, childfd):
            with suppress(OSError):
                os.close(int(fd))  # an end of stream must not wait for us
    poller = select.poll()
    poller.register(owner, select.POLLIN)
    poller.register(childfd, select.POLLIN)
    poller.poll()


def end_children(spare: set[int]) -> None:
    """Kill and reap this process's children but `spare`. A subreaper inherits theirs, so it goes on until none is left.

    For a process with one thread.
    """
    while strangers := [pid for pid in _children() if pid not in spare]:
        for pid in strangers:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _children() -> list[int]:
    pid = os.getpid()
    with open(f"/proc/{pid}/task/{pid}/children", "rb") as file:
        return [int(child) for child in file.read().split()]


def _started(pid: int) -> int:
    """When a process started, in clock ticks since boot; -1 when there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return -1
