"""Memory of the processes of a run, as far as /proc reports it: each page once.

    resident    private pages, and each process's share of the shared ones
    hidden      shared anonymous memory that is filled and then dropped, or held by a child that never touched it:
                counted by its mapping, once for all processes that map it, and at most what there can be of it
    tables      page tables, which reading one byte in every 2 MiB fills; and what was swapped out

Read only as far as needed: while the sum of all mappings is below the limit, so is the usage.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from sandbox.kernel import procfs

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_MAPS_MAX: Final = 1 << 20  # a process with more mappings, or hidden ones, is taken to use all that it maps
_TABLES: Final = re.compile(rb"^Vm(?:PTE|Swap):\s+(\d+) kB", re.MULTILINE)
_ALL_SHARED: Final = re.compile(rb"^Shmem:\s+(\d+) kB", re.MULTILINE)
_SHARES: Final = re.compile(rb"^Pss_(Anon|File|Shmem):\s+(\d+) kB", re.MULTILINE)
_SHARED: Final = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) \S+ \S+ (\S+ \d+) +/dev/zero \(deleted\)$", re.MULTILINE)


def weigh(pids: list[int], limit_bytes: int, most: Callable[[], int]) -> int:
    """Return the bytes that they hold together: exact above `limit_bytes`, an estimate below.

    `most`: bytes that their shared memory takes at most.
    """
    mapped = resident = 0
    for pid in pids:
        with suppress(OSError, ValueError, IndexError):  # it ended while we looked
            virtual, touched = read_proc_file(procfs.at(f"{pid}/statm")).split()[:2]
            mapped += int(virtual) * _PAGE
            resident += int(touched) * _PAGE
    if mapped <= limit_bytes:
        return resident
    hidden, tables = _hidden(pids), sum(map(_tables, pids))
    if hidden > limit_bytes:  # it may be reserved and never filled
        hidden = min(hidden, most())
    if tables > limit_bytes or resident + hidden + tables <= limit_bytes:
        return resident + hidden + tables
    own = shared = 0
    for pid in pids:
        with suppress(OSError, ValueError, IndexError):
            private, shmem = _shares(pid)
            own += private
            shared += shmem
    return own + max(shared, hidden) + tables


def _shares(pid: int) -> tuple[int, int]:
    """Return one process's share of private and file pages, and of shared memory."""
    try:
        found = {
            name: int(size) << 10 for name, size in _SHARES.findall(read_proc_file(procfs.at(f"{pid}/smaps_rollup")))
        }
    except PermissionError:
        return int(read_proc_file(procfs.at(f"{pid}/statm")).split()[1]) * _PAGE, 0
    return found.get(b"Anon", 0) + found.get(b"File", 0), found.get(b"Shmem", 0)


def _tables(pid: int) -> int:
    with suppress(OSError):
        return sum(int(size) << 10 for size in _TABLES.findall(read_proc_file(procfs.at(f"{pid}/status"))))
    return 0


def _hidden(pids: list[int]) -> int:
    """Shared anonymous memory, by what is mapped of it."""
    sizes: dict[bytes, int] = {}
    for pid in pids:
        own: dict[bytes, int] = {}
        with suppress(OSError):
            try:
                maps = read_proc_file(procfs.at(f"{pid}/maps"), _MAPS_MAX)
            except PermissionError:  # of an executable that cannot be read
                maps = b""
            if not 0 < len(maps) < _MAPS_MAX:
                own[b"%d" % pid] = int(read_proc_file(procfs.at(f"{pid}/statm")).split()[0]) * _PAGE
            for start, end, name in _SHARED.findall(maps):
                own[name] = own.get(name, 0) + int(end, 16) - int(start, 16)
        for name, size in own.items():
            sizes[name] = max(sizes.get(name, 0), size)
    return sum(sizes.values())


def all_shared() -> int:
    """Return the bytes of shared memory that the machine has in use: no run can have more."""
    with suppress(OSError):
        if found := _ALL_SHARED.search(read_proc_file(procfs.at("meminfo"))):
            return int(found[1]) << 10
    return 1 << 63


def read_proc_file(path: str, size: int = 8192) -> bytes:
    """Return the first bytes of a file of /proc, which yields about a page at a time."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = os.read(fd, size)
        while (left := size - len(data)) > 0 and (more := os.read(fd, left)):
            data += more
        return data
    finally:
        os.close(fd)
