"""Run directories, one per pool or jail, and cgroups: named after their owner, and gone when it is, however that dies.

The owner only thinks of the name. The process that makes the directory lives through the owner's death and removes it:
a pool's supervisor, or the guard of a jail that stands alone. What is left if that one is killed as well is removed by
the next owner's `reserve_directory`.
"""

from __future__ import annotations

import os
import re
import secrets
import tempfile
from contextlib import suppress
from typing import Final

from sandbox.kernel import cgroup
from sandbox.kernel.clear import remove_tree

_PREFIX: Final = "overlap-sandbox-"
_NAME: Final = re.compile(rf"{_PREFIX}(\d+)-(\d+)-(\d+)-.*")
"""Pid, when that process started, and the pid namespace that numbers it: containers may share a temp folder."""


def reserve_directory(above: str = "") -> str:
    """The path of a directory that is not there yet and is this process's to use; removes those of dead owners.

    It lies in `above`, or else in the temp folder, where those of dead owners are looked for.
    """
    remove_orphans()
    return os.path.join(above or tempfile.gettempdir(), _own_name())


def group_name(directory: str) -> str:
    """What the cgroup of the jail in `directory` is called: its owner can be told from it."""
    above, name = os.path.split(directory)
    if _NAME.fullmatch(name):
        return name
    owner = os.path.basename(above)
    return f"{owner if _NAME.fullmatch(owner) else _own_name()}.{name}"


def remove_orphans() -> None:
    """Remove what is left of owners that are dead, or whose pid is by now another process's. Of those in another pid
    namespace nobody here knows whether they live.
    """
    for name in filter(_orphaned, cgroup.other_names()):
        cgroup.remove_cgroups(name)
    base = tempfile.gettempdir()
    for name in filter(_orphaned, os.listdir(base)):
        with suppress(OSError):
            if os.lstat(os.path.join(base, name)).st_uid == os.geteuid():
                remove_tree(os.path.join(base, name))


def remove_run_directory(directory: str) -> None:
    """A run directory, and the cgroups of all jails in it, with whoever is still there."""
    cgroup.remove_cgroups(os.path.basename(directory))
    remove_tree(directory)


def _orphaned(name: str) -> bool:
    found = _NAME.fullmatch(name)
    return found is not None and int(found[3]) == _namespace() and _started(int(found[1])) != int(found[2])


def _own_name() -> str:
    pid = os.getpid()
    return f"{_PREFIX}{pid}-{_started(pid)}-{_namespace()}-{secrets.token_hex(4)}"


def _namespace() -> int:
    """Which namespace our pids are of; 0 where the kernel does not say."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def _started(pid: int) -> int:
    """When a process started, in clock ticks since boot; -1 when there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return -1
