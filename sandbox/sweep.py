"""Run directories: one per pool or jail, named after its owner, and gone when the owner is, however that dies.

The owner only thinks of the name. The process that makes the directory lives through the owner's death and removes it:
a pool's supervisor, or the guard of a jail that stands alone. What is left if that one is killed as well is removed by
the next owner's `reserve_directory`.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import tempfile
from contextlib import suppress
from typing import Final

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


def _started(pid: int) -> int:
    """When a process started, in clock ticks since boot; -1 when there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return -1
