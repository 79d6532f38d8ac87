"""Disk usage of a run, where its work directory is on a real disk that no mount bounds (tier B).

    taken      what the whole disk has lost since the run began: one call, and if it is little, the only one
    lying      what is in the work directory, by blocks and by number
    written    pages that the run's processes have written to disk, whether or not the file still has a name

Other processes fill the disk too, so `taken` alone proves nothing; and rewriting one file writes more than is there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from sandbox.kernel import procfs
from sandbox.zygote.memory_usage import read_proc_file

_FILES_MIN, _BYTES_PER_FILE = 4096, 32 << 10
_BLOCK: Final = 512  # of st_blocks
_WRITTEN: Final = re.compile(rb"^(cancelled_)?write_bytes: (\d+)$", re.MULTILINE)


class Disk:
    """The work directory, of one run after the other."""

    def __init__(self, work: str, bytes_max: int) -> None:
        self.work, self.bytes_max, self.files_max = work, bytes_max, files_max(bytes_max)
        self.begin()

    def begin(self) -> None:
        """A run begins; the directory is empty."""
        self._free, self._inodes = self._look()
        self._before = _written(["self"])

    def exceeded(self, pids: Iterable[int]) -> bool:
        """Return whether the run exceeds its share. `pids`: its processes."""
        free, inodes = self._look()
        if self._free - free <= self.bytes_max and self._inodes - inodes <= self.files_max:
            return False
        if self.is_full():
            return True
        taken = self._free - free > self.bytes_max
        return taken and _written(["self", *map(str, pids)]) - self._before > self.bytes_max

    def is_full(self) -> bool:
        """Return whether more is stored there than may be."""
        size, count = self._lying()
        return size > self.bytes_max or count > self.files_max

    def _look(self) -> tuple[int, int]:
        found = os.statvfs(self.work)
        return found.f_bfree * found.f_frsize, found.f_ffree

    def _lying(self) -> tuple[int, int]:
        """Return bytes and number of files, as far as they matter."""
        size, count, waiting = 0, 0, [self.work]
        while waiting and size <= self.bytes_max and count <= self.files_max:
            with suppress(OSError), os.scandir(waiting.pop()) as entries:  # it is gone, or locked: `written` tells
                for entry in entries:
                    count += 1
                    if count > self.files_max:
                        break
                    with suppress(OSError):
                        size += entry.stat(follow_symlinks=False).st_blocks * _BLOCK
                        if entry.is_dir(follow_symlinks=False):
                            waiting.append(entry.path)
        return size, count


def files_max(work_bytes: int) -> int:
    """The number of files that a work directory of this size may hold."""
    return max(_FILES_MIN, work_bytes // _BYTES_PER_FILE)


def _written(pids: Iterable[str]) -> int:
    """Return the bytes written by processes and their reaped children, less what they truncated."""
    total = 0
    for pid in pids:
        with suppress(OSError):
            for cut, size in _WRITTEN.findall(read_proc_file(procfs.at(f"{pid}/io"))):
                total += -int(size) if cut else int(size)
    return total
