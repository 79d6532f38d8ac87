"""One cgroup per jail, where the machine allows it: the kernel's limit on memory and processes of a whole run.

A backstop. Resource limits hold for one process, and the watcher samples every few milliseconds; in between, many
processes together could take more than the machine has. The kernel then kills one of them and counts it.

    v1    memory and pids, each in its own tree; and cpuacct, where it is mounted without cpu, which changes scheduling
    v2    one tree, where this process's group, or its parent, delegates both controllers to its children

It also counts the CPU time of children that were not waited for.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final, NamedTuple

_REMOVE_S: Final = 1.0
_CONTROLLERS: Final = ("memory", "pids")
_FILES: Final = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.oom_control", "memory.failcnt", "cpuacct.usage"),
    2: ("memory.max", "memory.current", "memory.events", "memory.events", "cpu.stat"),
}
"""Files by version: the memory limit; its usage; how many processes were killed for memory; how often the limit was
reached; and the CPU time.
"""


class _Layout(NamedTuple):
    """Directories where groups can be created."""

    version: int
    folders: tuple[str, ...]
    """Folders for memory, pids and, where it is counted, CPU time: all the same in v2."""


class OomCount(NamedTuple):
    """Number of times that memory ran out, so far."""

    killed: int
    """Processes of the group that the kernel killed, whichever process used the memory up."""
    reached: int
    """Times that the group reached its own limit, and nothing could be reclaimed."""


class Cgroup:
    """An existing group. Its files are opened at once, because a jail can no longer see them."""

    def __init__(self, layout: _Layout, name: str) -> None:
        self.version, folders = layout
        self._limits: tuple[int, int] | None = None
        self._groups = sorted({f"{folder}/{name}" for folder in folders})
        for group in self._groups:
            os.mkdir(group, 0o755)
        memory, pids, *cpu = (f"{folder}/{name}" for folder in folders)
        limit, *counts, usage = _FILES[self.version]
        self._memory, self._pids = (
            os.open(path, os.O_WRONLY | os.O_CLOEXEC) for path in (f"{memory}/{limit}", f"{pids}/pids.max")
        )
        self._used, self._kills, self._reached = (
            os.open(f"{memory}/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in counts
        )
        self._usage = os.open(f"{cpu[0]}/{usage}", os.O_RDONLY | os.O_CLOEXEC) if cpu else None

    def join(self) -> None:
        """Move the calling process in; its children start there."""
        for group in self._groups:
            with open(f"{group}/cgroup.procs", "w", encoding="ascii") as file:
                file.write("0")

    def limit(self, memory_bytes: int, processes: int) -> None:
        """Limit all processes of the group together.

        Raises OSError when more memory is in use and cannot be reclaimed.
        """
        if self._limits != (memory_bytes, processes):
            os.pwrite(self._memory, b"%d" % memory_bytes, 0)
            os.pwrite(self._pids, b"%d" % processes, 0)
            self._limits = memory_bytes, processes

    def oom_count(self) -> OomCount:
        """Return how often memory ran out here. A limit above us that is reached counts in the group above."""
        kills, reached = (os.pread(fd, 4096, 0) for fd in (self._kills, self._reached))
        often = int(reached) if self.version == 1 else _number(b"oom ", reached)
        return OomCount(_number(b"oom_kill ", kills) or 0, often or 0)

    def usage(self) -> int:
        """Return the bytes of memory that are charged to it."""
        return int(os.pread(self._used, 64, 0))

    def cpu_s(self) -> float | None:
        """Return the CPU seconds of all processes that were ever in it; None where they are not counted."""
        if self._usage is None:
            return None
        text = os.pread(self._usage, 4096, 0)
        if self.version == 1:
            return int(text) / 1e9
        spent = _number(b"usage_usec ", text)
        return None if spent is None else spent / 1e6


def machine_oom_kills() -> int:
    """Return how many processes this machine's kernel has killed for memory; 0 where /proc does not show it."""
    with suppress(OSError):
        return _number(b"oom_kill ", _read("/proc/vmstat").encode()) or 0
    return 0


def _number(name: bytes, text: bytes) -> int | None:
    """Return the number in the line that begins with `name`.

    Called often; a regular expression would take ten times as long.
    """
    _, found, rest = (b"\n" + text).partition(b"\n" + name)
    return int(rest.partition(b"\n")[0]) if found else None


def make(name: str) -> Cgroup | None:
    """Create a group; None where this machine does not allow it."""
    for layout in _layouts():
        try:
            return Cgroup(layout, name)
        except OSError:
            _remove(layout.folders, name)
    return None


def join_new_cgroup(name: str) -> Cgroup | None:
    """Create a group and move the calling process into it; None where creating it or joining it is not allowed."""
    group = make(name)
    try:
        if group is not None:
            group.join()
    except OSError:
        remove_cgroups(name)
        return None
    return group


def remove_cgroups(prefix: str) -> None:
    """Remove the groups whose names begin so, and kill the processes in them.

    Only for their owner; takes at most a second.
    """
    folders = _folders()
    for name in other_names():
        if name.startswith(prefix):
            _remove(folders, name)


def other_names() -> set[str]:
    """Return the names beside the groups that are created here."""
    found: set[str] = set()
    for folder in _folders():
        with suppress(OSError):
            found.update(os.listdir(folder))
    return found


def _folders() -> set[str]:
    return {folder for layout in _layouts() for folder in layout.folders}


def _remove(folders: Iterable[str], name: str) -> None:
    deadline = time.monotonic() + _REMOVE_S
    for folder in set(folders):
        with suppress(OSError):  # it does not exist, or belongs to another user
            while not _removed(f"{folder}/{name}") and time.monotonic() < deadline:
                time.sleep(0.002)  # a killed process leaves the group when it has ended


def _removed(group: str) -> bool:
    """Try to remove a group. Raises OSError when that is impossible."""
    try:
        os.rmdir(group)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
    else:
        return True
    for pid in map(int, _read(f"{group}/cgroup.procs").split()):
        if pid not in (0, os.getpid()):  # 0: of another pid namespace
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    return False


def _layouts() -> Iterator[_Layout]:
    """Return the places where groups could be created, best first."""
    try:
        mounts, lines = _mounts(), _read("/proc/self/cgroup").splitlines()
    except OSError:
        return
    rows = [line.split(":", 2) for line in lines]
    own = {controller: path for _, controllers, path in rows for controller in controllers.split(",")}
    if all(name in own and name in mounts for name in _CONTROLLERS):
        memory, pids = (_folder(mounts[name], own[name]) for name in _CONTROLLERS)
        if "cpuacct" in own and "cpuacct" in mounts:
            yield _Layout(1, (memory, pids, _folder(mounts["cpuacct"], own["cpuacct"])))
        yield _Layout(1, (memory, pids))
    if "" in own and "" in mounts:
        here = _folder(mounts[""], own[""])
        for folder in dict.fromkeys((here, os.path.dirname(here))):
            if folder.startswith(mounts[""][1]) and _hands_on(folder):
                yield _Layout(2, (folder, folder, folder))


def _mounts() -> dict[str, tuple[str, str]]:
    """Return for each controller ("" is v2) the root of its mount and the mount point."""
    found = {}
    for line in _read("/proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        root, place = before.split()[3:5]
        kind, _, options = after.split(" ", 2)
        if kind == "cgroup2":
            found[""] = root, place
        elif kind == "cgroup":
            here = options.rpartition(" ")[2].split(",")
            known = (*_CONTROLLERS, *(() if "cpu" in here else ("cpuacct",)))
            found |= {name: (root, place) for name in here if name in known}
    return found


def _folder(mount: tuple[str, str], path: str) -> str:
    root, place = mount
    below = os.path.relpath(path, root)
    return place if below == "." or below.startswith("..") else os.path.join(place, below)


def _hands_on(folder: str) -> bool:
    try:
        return set(_CONTROLLERS) <= set(_read(f"{folder}/cgroup.subtree_control").split())
    except OSError:
        return False


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()
