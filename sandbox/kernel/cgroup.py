"""A cgroup per jail, where we may make one: the kernel's limit on memory and processes of all that a run starts.

A backstop. Resource limits hold for one process, and the watcher looks every few milliseconds; in between, many
processes together could take more than the machine has. The kernel then ends one of them and counts it.

    v1    memory and pids, each in a tree of its own; and cpuacct, where it is not one with cpu, which would change who
          goes first
    v2    one tree, where the group that we are in, or the one above, hands both controllers on to its children

It also knows the CPU time of children that nobody waited for.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

_REMOVE_S: Final = 1.0
_CONTROLLERS: Final = ("memory", "pids")


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where the files are: a folder per controller, which in v2 is the same one."""

    version: int
    folders: tuple[str, ...]
    """memory, pids, and what counts CPU time, if anything does."""

    def files(self, name: str) -> tuple[str, str, str]:
        """Memory limit, limit on processes, and what counts the processes that were ended for memory."""
        memory, pids = (f"{folder}/{name}" for folder in self.folders[:2])
        names = (
            ("memory.limit_in_bytes", "memory.oom_control") if self.version == 1 else ("memory.max", "memory.events")
        )
        return f"{memory}/{names[0]}", f"{pids}/pids.max", f"{memory}/{names[1]}"

    def usage(self, name: str) -> str | None:
        """What counts the CPU time."""
        if len(self.folders) < 3:
            return None
        return f"{self.folders[2]}/{name}/{'cpuacct.usage' if self.version == 1 else 'cpu.stat'}"


class Cgroup:
    """A group that exists. Its files are opened at once, for a jail that then loses sight of them."""

    def __init__(self, layout: _Layout, name: str) -> None:
        self.version = layout.version
        self._limits: tuple[int, int] | None = None
        self._groups = sorted({f"{folder}/{name}" for folder in layout.folders})
        for group in self._groups:
            os.mkdir(group, 0o755)
        memory, pids, kills = layout.files(name)
        self._memory, self._pids = (os.open(path, os.O_WRONLY | os.O_CLOEXEC) for path in (memory, pids))
        self._kills = os.open(kills, os.O_RDONLY | os.O_CLOEXEC)
        usage = layout.usage(name)
        self._usage = None if usage is None else os.open(usage, os.O_RDONLY | os.O_CLOEXEC)

    def join(self) -> None:
        """Move the calling process in; what it starts is born there."""
        for group in self._groups:
            with open(f"{group}/cgroup.procs", "w", encoding="ascii") as file:
                file.write("0")

    def limit(self, memory_bytes: int, processes: int) -> None:
        """Of all in the group together. Raises OSError when more memory is in use and cannot be given back."""
        if self._limits != (memory_bytes, processes):
            os.pwrite(self._memory, b"%d" % memory_bytes, 0)
            os.pwrite(self._pids, b"%d" % processes, 0)
            self._limits = memory_bytes, processes

    def kills(self) -> int:
        """How many processes the kernel has ended here because the memory was used up."""
        return _number(b"oom_kill ", os.pread(self._kills, 4096, 0)) or 0

    def cpu_s(self) -> float | None:
        """CPU seconds of all that was ever in it; None where nothing counts them."""
        if self._usage is None:
            return None
        text = os.pread(self._usage, 4096, 0)
        if self.version == 1:
            return int(text) / 1e9
        spent = _number(b"usage_usec ", text)
        return None if spent is None else spent / 1e6


def _number(name: bytes, text: bytes) -> int | None:
    """What a line says that begins with `name`. Asked often, and a pattern would take ten times as long."""
    _, found, rest = (b"\n" + text).partition(b"\n" + name)
    return int(rest.partition(b"\n")[0]) if found else None


def make(name: str) -> Cgroup | None:
    """A new group, or None where this machine does not let us."""
    for layout in _layouts():
        try:
            return Cgroup(layout, name)
        except OSError:
            _remove(layout, name)
    return None


def join_new_cgroup(name: str) -> Cgroup | None:
    """A new group with the calling process in it, or None: making one is not yet being let in."""
    group = make(name)
    try:
        if group is not None:
            group.join()
    except OSError:
        remove_cgroups(name)
        return None
    return group


def remove_cgroups(prefix: str) -> None:
    """Remove the groups whose names begin so, and end whoever is still in them. For who owns them; at most a second."""
    for layout in _layouts():
        for folder in set(layout.folders):
            with suppress(OSError):
                for name in os.listdir(folder):
                    if name.startswith(prefix):
                        _remove(layout, name)


def other_names() -> set[str]:
    """What lies beside the groups that we make."""
    found: set[str] = set()
    for layout in _layouts():
        for folder in layout.folders:
            with suppress(OSError):
                found.update(os.listdir(folder))
    return found


def _remove(layout: _Layout, name: str) -> None:
    deadline = time.monotonic() + _REMOVE_S
    for folder in set(layout.folders):
        with suppress(OSError):  # it is not there, or not ours
            while not _removed(f"{folder}/{name}") and time.monotonic() < deadline:
                time.sleep(0.002)  # what was killed leaves the group when it has ended


def _removed(group: str) -> bool:
    """Raises OSError when it cannot be removed at all."""
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
    """Where groups could be made, best first."""
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
    """Controller ("" is v2) to the root of its mount in its tree, and the mount's place."""
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
