"""What a program leaves in its working directory, made fit to be read: nothing there blocks, or leads elsewhere.

consumes: a folder whose programs have ended        produces: the same folder, of files and folders alone
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from sandbox.kernel import remove_tree

FILE_BYTES = 256 << 20
"""A longer file, which may take no room on the disk, is not for one read into memory."""


def clean_workdir(folder: Path) -> None:
    """Remove pipes, sockets, devices, links that lead out or nowhere, files beyond FILE_BYTES; open what was locked.
    There is a folder afterwards, also where the program removed it or put something in its place. Raises OSError.
    """
    if folder.is_symlink() or not folder.is_dir():
        remove_tree(str(folder))
        folder.mkdir(0o700)
    home, waiting, links = os.path.realpath(folder), [str(folder)], list[str]()
    while waiting:
        place = waiting.pop()
        with suppress(OSError):  # too deep for a path: nobody reads it by one
            os.chmod(place, 0o700)
            with os.scandir(place) as found:
                entries = list(found)
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                elif entry.is_symlink():
                    links.append(entry.path)
                elif not _readable(entry.path):
                    os.unlink(entry.path)
    for link in links:  # what they lead to has gone by now, or stays
        if not os.path.exists(link) or not os.path.realpath(link).startswith(home + os.sep):
            os.unlink(link)


def _readable(path: str) -> bool:
    """Whether it is a file that can be read into memory; it may be read then."""
    kind = os.lstat(path)
    if not stat.S_ISREG(kind.st_mode) or kind.st_size > FILE_BYTES:
        return False
    os.chmod(path, kind.st_mode | 0o600)
    return True
