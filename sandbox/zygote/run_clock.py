"""Decide whether a run is late by its own will, or waits for the machine: by what /proc says of all its threads."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from sandbox.kernel import procfs
from sandbox.zygote.memory_usage import read_proc_file

_TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")
_REFAULTS: Final = re.compile(rb"^workingset_refault\w* (\d+)", re.MULTILINE)
_VMSTAT_BYTES: Final = 1 << 16
_REFAULTS_PER_S: Final = 200  # fewer are no shortage: 1 MiB a second
WALL_STRETCH: Final = 6.0  # on an overloaded machine a run may take this much longer than its wall limit, no more


@dataclass(frozen=True, slots=True)
class RunUse:
    """Resources that the processes of a run have used so far."""

    cpu_s: dict[int, float]
    """CPU seconds by process, with the children that it has waited for."""
    tasks: int = 0
    faults: int = 0
    """Pages that had to be read."""

    def since(self, before: RunUse) -> float:
        """Return the CPU seconds since then, also of processes whose siblings have ended unseen meanwhile."""
        return sum(max(0.0, cpu_s - before.cpu_s.get(pid, 0.0)) for pid, cpu_s in self.cpu_s.items())


class RunClock:
    """The current limits of a run, and its deadline. Not counted is what it lost: while one of its threads was ready to
    run, or was having a page read that the machine had dropped for want of memory, the time in which it used no CPU. A
    thread that sleeps waits by its own will, and so does one that asked for less of the cores than we have, is stuck
    without reading pages (in vfork), or reads what no process has read before or it has dropped itself. What has begun
    since the last look shows nothing: one that ends between two looks may have used a core all the time.
    """

    def __init__(self, limits: dict[str, Any], used: RunUse | None = None, cpu_s: float = 0.0) -> None:
        self.limits, self.used, self.cpu_s, self.lost_s = limits, used or RunUse({}), cpu_s, 0.0
        self.start = self.seen = time.monotonic()
        self.stuck_s = 0.0
        """Lost, if it turns out that a page was read."""
        self.shortage: tuple[float, int] | None = None
        """Time at which it was first stuck, and how many pages the machine had read again by then."""
        self.deadline: float = self.start + limits["wall_s"]

    def look(self, used: RunUse, cpu_s: float) -> float:
        """Return the seconds that it lost since the last look. `cpu_s`: of all that it ever started."""
        now, before = time.monotonic(), self.used
        idle = max(0.0, now - self.seen - max(cpu_s - self.cpu_s, used.since(before)))
        self.seen, self.used, self.cpu_s = now, used, cpu_s
        state = waiting_state([pid for pid in used.cpu_s if pid in before.cpu_s])
        lost = idle if state == "R" else 0.0
        self.stuck_s += idle if state == "D" else 0.0
        has_read = used.faults > before.faults and self.stuck_s > 0
        if has_read and self._is_short():
            lost += self.stuck_s
        if has_read or state != "D":
            self.stuck_s = 0.0
        if state == "D" and self.shortage is None:
            self.shortage = now, machine_refaults()
        self.lost_s += lost
        return lost

    def _is_short(self) -> bool:
        """Return whether the machine reads pages again that it has dropped."""
        if self.shortage is None:
            return False
        since, refaults = self.shortage
        return machine_refaults() - refaults >= _REFAULTS_PER_S * (self.seen - since)

    def exceeded(self) -> str | None:
        """Return the limit that is exceeded, if one is."""
        now, wall_s = time.monotonic(), self.limits["wall_s"]
        if now >= self.deadline:
            self.deadline = self.start + min(wall_s + self.lost_s, wall_s * WALL_STRETCH)
        if now < self.deadline:
            return None
        return "wall" if now - self.start - self.lost_s >= wall_s else "starved"


def waiting_state(members: list[int]) -> str:
    """Return R where a thread is ready to run, else D where one is stuck in the kernel, else "": all sleep."""
    found, cores = "", os.sched_getaffinity(0)
    rank = os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0)
    for thread, fields in _threads(members):
        with suppress(OSError):  # it ended while we looked
            ready = fields[0] == b"R" and (int(fields[16]), int(fields[38])) == rank
            if ready and os.sched_getaffinity(thread) >= cores:
                return "R"
            found = "D" if fields[0] == b"D" else found
    return found


def _threads(pids: list[int]) -> Iterator[tuple[int, list[bytes]]]:
    """The id of each thread, and what its `stat` says from its state on."""
    for pid in pids:
        with suppress(OSError):  # it ended while we looked
            for thread in os.listdir(procfs.at(f"{pid}/task")):
                if fields := read_proc_file(procfs.at(f"{pid}/task/{thread}/stat")).rpartition(b")")[2].split():
                    yield int(thread), fields


def machine_refaults() -> int:
    """Return how many pages the machine has read again that it had dropped for want of memory; what a process drops by
    its own will is not among them.
    """
    with suppress(OSError):
        return sum(map(int, _REFAULTS.findall(read_proc_file(procfs.at("vmstat"), _VMSTAT_BYTES))))
    return 0


def look_at(pids: list[int]) -> tuple[bool, float]:
    """Return whether one of their threads is ready to run or stuck in the kernel, and their CPU seconds so far."""
    return any(fields[0] in (b"R", b"D") for _, fields in _threads(pids)), sum(read_use(pids).cpu_s.values())


def read_use(members: list[int]) -> RunUse:
    """Return what they have used so far."""
    cpu_s, tasks, faults = dict[int, float](), 0, 0
    for pid in members:
        with suppress(OSError, ValueError, IndexError):  # it ended while we looked
            fields = read_proc_file(procfs.at(f"{pid}/stat")).rpartition(b")")[2].split()
            own_s, waited_for_s = (sum(map(int, fields[at : at + 2])) * _TICK_S for at in (11, 13))
            with suppress(OSError, ValueError, IndexError):  # its first thread's, in nanoseconds
                own_s = max(own_s, int(read_proc_file(procfs.at(f"{pid}/schedstat")).split()[0]) / 1e9)
            cpu_s[pid] = own_s + waited_for_s
            faults += int(fields[9]) + int(fields[10])
            tasks += int(fields[17])
    return RunUse(cpu_s, tasks, faults)
