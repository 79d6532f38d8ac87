"""Files in a run's work directory, as the zygote writes and fetches them. Their names were checked by the sender."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from typing import Final

GATHERED_MAX: Final = 64
"""Files that are brought back."""
GATHERED_BYTES_MAX: Final = 64 << 20


def write_file(work: str, name: str, source: int, offset: int, size: int) -> None:
    """Write part of `source` as a new file below the directory `work`, readable by all."""
    parent = work
    for part in name.split("/")[:-1]:
        parent = f"{parent}/{part}"
        os.makedirs(parent, exist_ok=True)
        os.chmod(parent, 0o755)
    target = os.open(f"{work}/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        os.fchmod(target, 0o644)
        end = offset + size
        while offset < end:
            offset += os.sendfile(target, source, offset, end - offset)
    finally:
        os.close(target)


def open_to_all(work: str, name: str) -> None:
    """Make a directory in which the program may write and change the given files."""
    path = f"{work}/{name}"
    os.makedirs(path, exist_ok=True)
    os.chmod(path, 0o777)
    for entry in os.scandir(path):
        os.chmod(entry.path, 0o666)


def collect(work: str, name: str | None) -> list[int]:
    """Open a regular file that the run made; no link, device or pipe."""
    fd = None if name is None else _open_regular(f"{work}/{name}")
    return [] if fd is None else [fd]


def gather(work: str, name: str, packed: int) -> list[tuple[str, int]] | None:
    """Append all regular files of a directory to `packed`; returns their names and sizes.

    None where there is more than can be brought back.
    """
    try:
        directory = os.open(f"{work}/{name}", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:  # the run has removed it, or made something else of it
        return []
    try:
        return _pack(directory, sorted(os.listdir(directory)), packed)
    finally:
        os.close(directory)


def fetch(work: str, names: Sequence[str], packed: int) -> list[tuple[str, int]] | None:
    """Append the named files below the work directory to `packed`, as `gather` does; what is no regular file, or is
    behind a link, is left out.
    """
    directory = os.open(work, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return _pack(directory, names, packed)
    finally:
        os.close(directory)


def _pack(directory: int, names: Sequence[str], packed: int) -> list[tuple[str, int]] | None:
    found: list[tuple[str, int]] = []
    for name in names:
        if (fd := _open_below(directory, name)) is None:
            continue
        try:
            offset, size = 0, os.fstat(fd).st_size
            if len(found) == GATHERED_MAX or size + sum(size for _, size in found) > GATHERED_BYTES_MAX:
                return None
            while offset < size:
                offset += os.sendfile(packed, fd, offset, size - offset)
        finally:
            os.close(fd)
        found.append((name, size))
    return found


def _open_below(directory: int, name: str) -> int | None:
    """Open a regular file by its name below a directory, through no link."""
    folder, rest = os.dup(directory), name
    try:
        while (parts := rest.partition("/"))[1]:
            inner = os.open(parts[0], os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            os.close(folder)
            folder, rest = inner, parts[2]
        return _open_regular(rest, folder)
    except OSError:
        return None
    finally:
        os.close(folder)


def _open_regular(path: str, directory: int | None = None) -> int | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    except OSError:
        return None
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    return None
