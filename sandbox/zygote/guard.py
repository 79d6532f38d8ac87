"""A process that outlives its owner and then removes the owner's directory. See kernel/orphan_cleanup.py.

The jail's zygote imports this module and forks for every run, so it imports nothing heavy, and never `random`, which
would reseed in every fork: random numbers must be the same in every run.
"""

from __future__ import annotations

import os
import select
import signal
from contextlib import suppress

from sandbox.kernel import linux
from sandbox.kernel.orphan_cleanup import remove_run_directory


def stand_guard(directory: str, owner: int) -> int:
    """Create `directory`, and fork.

    Returns only in the child, with the pid of its parent, the guard. The guard removes the directory and the child's
    cgroup when the child has ended, and kills the child when the owner has ended. For a process started by exec that is
    still single-threaded.
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
        remove_run_directory(directory)
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
    """Kill and reap this process's children except `spare`.

    A subreaper inherits theirs, so it repeats until none is left. For a process with one thread.
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
