"""The source of a Python program, in the work directory of its runs: programs read, import and start themselves.

    first run    copied out of the job          further runs    left in place, while no run has touched it

What a run could leave there for the next would be a note. Where programs have a uid of their own, none can write the
file, nor set a time: so before each run the times of file and directory are set to 0, and after it they show what was
read or changed. Elsewhere the source does not outlive its run. Neither times nor inode show a run its number.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Final

NAME: Final = "main.py"
_MODE: Final = 0o444
_ZERO: Final = (0, 0)
_stat, _utime, _listdir = os.stat, os.utime, os.listdir


class PlacedSource:
    """The directory and its content between runs: nothing, or one program's source.

    It is used beside forks, to which each page that it touches is copied: hence few functions and objects.
    """

    __slots__ = ("changed", "keeps", "mode", "names", "path", "program", "renew", "work")

    def __init__(self, work: str, renew: Callable[[], None], *, keeps: bool) -> None:
        """`renew` makes the directory anew. `keeps`: programs have a uid of their own."""
        self.work, self.path, self.renew, self.keeps = work, f"{work}/{NAME}", renew, keeps
        self.mode, self.changed = os.stat(work).st_mode, 0
        self.program, self.names = 0, list[str]()

    def place(self, program: int, job: int, where: tuple[int, int] | None) -> None:
        """Put the source there for a run of `program` (0: none that comes again). `where`: offset and size in `job`."""
        if self.names and where is None:
            self._clear()
        if where is not None and (program != self.program or not self.names or not program):
            _copy(job, *where, self.path)
            self.program, self.names = program, [NAME]
        if self.names:
            _utime(self.path, ns=_ZERO)
        _utime(self.work, ns=_ZERO)
        if not self.keeps:
            self.changed = _stat(self.work).st_ctime_ns

    def tidy(self) -> None:
        """Make the directory anew where it is not as it was before the run, or may not stay so.

        Raises OSError when that cannot be: who runs here next would pay for it.
        """
        if not self._is_untouched():
            self._clear()

    def _is_untouched(self) -> bool:
        found = _stat(self.work)
        if found.st_mtime or found.st_atime or found.st_mode != self.mode or _listdir(self.work) != self.names:
            return False
        if not self.keeps:
            return not self.names and found.st_ctime_ns == self.changed
        return not self.names or not _stat(self.path, follow_symlinks=False).st_atime

    def _clear(self) -> None:
        self.renew()
        if _listdir(self.work) or _stat(self.work).st_mode != self.mode:
            raise OSError(errno.ENOTEMPTY, f"{self.work} is not as it was before the run")
        self.program, self.names = 0, []


def _copy(source: int, offset: int, size: int, path: str) -> None:
    """Into the file that is there, if there is one: another would have another inode."""
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, _MODE)
    try:
        os.fchmod(target, _MODE)
        end = offset + size
        while offset < end:
            offset += os.sendfile(target, source, offset, end - offset)
    finally:
        os.close(target)
