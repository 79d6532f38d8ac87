"""Run directories (one per pool or jail) and cgroups, named after their owner and removed however it dies.

The owner only chooses the name. The process that creates the directory outlives the owner and removes it: a pool's
supervisor, or the guard of a single jail. If that process is killed as well, the next `reserve_directory` of any owner
removes the directory.
"""

from __future__ import annotations

import os
import re
from base64 import urlsafe_b64encode
from contextlib import suppress
from typing import Final

from sandbox.kernel import cgroup
from sandbox.kernel.clear import remove_tree

_PREFIX: Final = "ovl-"
_NAME: Final = re.compile(rf"{_PREFIX}([0-9a-f]+)-([0-9a-f]+)-([0-9a-f]+)-.*")
"""Pid, start time and pid namespace of the owner, in hexadecimal: containers may share a temp folder. At most 36
characters in all, for below the directory programs make sockets, whose whole path may have 107.
"""


def reserve_directory(above: str = "") -> str:
    """Return the path of a new directory for this process; removes those of dead owners.

    It is in `above`, or else in the temp folder, where those of dead owners are searched.
    """
    remove_orphans()
    return os.path.join(above or _temp_folder(), _own_name())


def group_name(directory: str) -> str:
    """Return the name of the cgroup of the jail in `directory`, which includes the owner."""
    above, name = os.path.split(directory)
    if _NAME.fullmatch(name):
        return name
    owner = os.path.basename(above)
    return f"{owner if _NAME.fullmatch(owner) else _own_name()}.{name}"


def remove_orphans() -> None:
    """Remove directories and cgroups of owners that are dead, or whose pid belongs to another process by now.

    Owners in another pid namespace are left alone, as nothing here shows whether they live.
    """
    for name in filter(_orphaned, cgroup.other_names()):
        cgroup.remove_cgroups(name)
    base = _temp_folder()
    for name in filter(_orphaned, os.listdir(base)):
        with suppress(OSError):
            if os.lstat(os.path.join(base, name)).st_uid == os.geteuid():
                remove_tree(os.path.join(base, name))


def remove_run_directory(directory: str) -> None:
    """Remove a run directory and the cgroups of its jails, and kill the processes in them."""
    cgroup.remove_cgroups(os.path.basename(directory))
    remove_tree(directory)


def _temp_folder() -> str:
    import tempfile  # only here: it imports `random`, which would then be seeded anew in every fork of a zygote

    return tempfile.gettempdir()


def _orphaned(name: str) -> bool:
    found = _NAME.fullmatch(name)
    return found is not None and int(found[3], 16) == _namespace() and _started(int(found[1], 16)) != int(found[2], 16)


def _own_name() -> str:
    pid = os.getpid()
    token = urlsafe_b64encode(os.urandom(4)).decode().rstrip("=")
    return f"{_PREFIX}{pid:x}-{_started(pid):x}-{_namespace():x}-{token}"


def _namespace() -> int:
    """Return the pid namespace of this process; 0 where the kernel does not show it."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def _started(pid: int) -> int:
    """Return the start time of a process in clock ticks since boot; -1 when there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return -1
