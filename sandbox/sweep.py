"""Run directories: one per pool, named after its owner, and removed by the next pool if the owner died first."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from contextlib import suppress
from typing import Final

_PREFIX: Final = "overlap-sandbox-"
_NAME: Final = re.compile(rf"{_PREFIX}(\d+)-(\d+)-.*")


def run_directory() -> str:
    """A new directory that only we may enter; removes those of dead owners first."""
    sweep()
    pid = os.getpid()
    return tempfile.mkdtemp(prefix=f"{_PREFIX}{pid}-{_started(pid)}-")


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
