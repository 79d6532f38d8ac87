"""Remove what a program left, however deep, long or locked; `shutil.rmtree` recurses, and stops at a locked one."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from typing import Final

_OPEN: Final = 0o700


def empty(place: str) -> None:
    """Empty the directory `place`.

    Raises OSError when something remains, and where it is no directory. Deep content is first moved up, so that no path
    is too long and nothing recurses. No other process may write there.
    """
    if os.path.islink(place):
        raise OSError(errno.ENOTDIR, f"cannot empty {place}")
    token, moved = os.urandom(8).hex(), 0
    waiting = [place]
    while waiting:
        folder = waiting.pop()
        with suppress(OSError):  # what cannot be removed is detected below
            os.chmod(folder, _OPEN)
            for entry in _entries(folder):
                if not entry.is_dir(follow_symlinks=False):
                    with suppress(OSError):
                        os.unlink(entry.path)
                    continue
                moved += 1
                above = f"{place}/{token}{moved}"
                with suppress(OSError):
                    os.chmod(entry.path, _OPEN)
                    os.rename(entry.path, above)
                    waiting.append(above)
            if folder != place:
                os.rmdir(folder)
    if _entries(place):
        raise OSError(errno.ENOTEMPTY, f"cannot empty {place}")


def remove_tree(path: str) -> None:
    """Remove a directory with its content, as far as permitted; a missing one is fine.

    Of a symbolic link only the link is removed.
    """
    for remove in (os.unlink, empty, os.rmdir):
        with suppress(OSError):
            remove(path)


def _entries(folder: str) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return list(entries)
