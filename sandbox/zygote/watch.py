"""Watch and end the processes of one run, and enforce its limits.

The watcher is the parent of the run and pid 1 of its namespace, or its subreaper, so no process of the run can escape
it. It measures CPU and memory over all processes, kills at a limit, records which limit it was, and returns only when
every process is dead and reaped.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol

from sandbox.kernel import procfs, seccomp
from sandbox.zygote.disk import Disk
from sandbox.zygote.inbox import Inbox
from sandbox.zygote.memory_usage import all_shared, read_proc_file, weigh
from sandbox.zygote.run_clock import RunClock, read_use

_CPUS: Final = os.cpu_count() or 1 << 20
_GLANCE_S: Final = 0.05
_PF_EXITING: Final = 4  # set before a process's descriptors are closed

_PREPARED_S: Final = 0.25  # of a group's CPU time, what the runs to come may have taken meanwhile

SHORTAGE: Final = "shortage"
"""The cause where the kernel killed a process of the run for memory, and others had used it up."""
Members = Callable[[], list[int]]
Spent = Callable[[], float]
"""Counts the CPU seconds of a run, including children that were not waited for and preparations beside it."""


@dataclass(slots=True)
class RunOutcome:
    """The end of one run.

    `cause`: what was enforced, as in `RunResult`; cancelled; SHORTAGE; or starved: it lost most of
    its stretched wall limit.
    """

    cause: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    cpu_s: float = 0.0
    wall_s: float = 0.0
    memory_bytes: int = 0
    left_behind: int = 0
    """Processes that outlived the program, killed and reaped."""
    lost_s: float = 0.0
    """Seconds in which it waited for the machine: see `RunClock`."""

    @property
    def ended(self) -> bool:
        """False when the end is unknown: the process that knew it was killed."""
        return self.cause is not None or self.signal is not None or self.exit_code is not None

    def add(self, cpu_s: float, memory_bytes: int) -> None:
        """Add the usage of one more process of the run."""
        self.cpu_s += cpu_s
        self.memory_bytes = max(self.memory_bytes, memory_bytes)

    def set_status(self, status: int) -> None:
        """Record the program's own end, as wait(2) reports it."""
        if os.WIFSIGNALED(status):
            self.signal = os.WTERMSIG(status)
        else:
            self.exit_code = os.WEXITSTATUS(status)


@dataclass(frozen=True, slots=True)
class Tribe:
    """The processes of a run, as this tier finds and kills them."""

    members: Members
    kill: Callable[[], None]
    atomic: bool
    """True when `kill` cannot be outrun by a fork."""


class WatchedRun(Protocol):
    """A running program: a direct child of this process, or of a template."""

    def fileno(self) -> int:
        """Readable when the program has ended."""

    def members(self) -> list[int]:
        """The processes of the run."""

    def end(self, outcome: RunOutcome) -> None:
        """Record its usage, and end all its processes."""


class Child:
    """A program that is a child of this process."""

    def __init__(self, pid: int, tribe: Tribe) -> None:
        self.pid, self.tribe = pid, tribe
        self.pidfd = os.pidfd_open(pid)
        self.members = tribe.members

    def fileno(self) -> int:
        return self.pidfd

    def end(self, outcome: RunOutcome) -> None:
        os.close(self.pidfd)
        end_all(self.tribe, outcome, {self.pid: True})


class Watcher:
    """Watches one run after the other. `listener` reports forbidden calls; `disk` bounds the work directory."""

    def __init__(self, inbox: Inbox, listener: int | None = None, disk: Disk | None = None) -> None:
        self.inbox, self.listener, self.disk = inbox, listener, disk
        self.shared: Callable[[], int] = all_shared
        """Tells how much shared memory a run has at most."""

    def watch(self, run: WatchedRun, limits: dict[str, Any], outputs: list[int], spent: Spent | None) -> RunOutcome:
        """Wait for the run under `limits`, then end all its processes."""
        outcome = RunOutcome()
        start = time.monotonic()
        try:
            outcome.cause = self._wait(run, limits, outputs, spent, outcome)
        finally:
            outcome.wall_s = time.monotonic() - start
            run.end(outcome)
        if spent is not None and outcome.wall_s * _CPUS > _PREPARED_S:  # else it cannot have spent more
            outcome.cpu_s = max(outcome.cpu_s, spent() - _PREPARED_S)
        if outcome.cause is None:
            outcome.cause = _exceeded(limits, outcome.cpu_s, outcome.memory_bytes, 1 + outcome.left_behind, outputs)
        return outcome

    def _wait(
        self, run: WatchedRun, limits: dict[str, Any], outputs: list[int], spent: Spent | None, outcome: RunOutcome
    ) -> str | None:
        """Wait until the program ends (None), or return the limit that it exceeded; counts what it has lost."""
        poller = select.poll()
        ended, asked = run.fileno(), self.inbox.fileno()
        poller.register(ended, select.POLLIN)
        poller.register(asked, select.POLLIN)
        if self.listener is not None:
            poller.register(self.listener, select.POLLIN)
        clock = RunClock(limits)
        look = time.monotonic() + min(_GLANCE_S, limits["cpu_s"])
        while True:
            ready = dict(poller.poll(max(0.0, min(look, clock.deadline) - time.monotonic()) * 1000))
            if asked in ready and self.inbox.cancelled():
                return "cancelled"
            if self.listener in ready and (call := seccomp.heard(self.listener)):
                return f"security: {call}"
            if ended in ready:
                return None
            lap = self.inbox.take_lap()
            if (
                ready and not lap and time.monotonic() < look
            ):  # who makes us listen without end is looked at all the same
                continue
            self.inbox.flush()
            members = run.members()
            used, memory = read_use(members), weigh(members, limits["memory_bytes"], self.shared)
            cpu, tasks = sum(used.cpu_s.values()), used.tasks
            if spent is not None:
                cpu = max(cpu, spent() - _PREPARED_S)
            outcome.lost_s += clock.look(used, cpu)
            if lap:
                clock = RunClock({**limits, "cpu_s": cpu + lap["cpu_s"], "wall_s": lap["wall_s"]}, used, cpu)
            if cause := _exceeded(clock.limits, cpu, memory, tasks, outputs):
                return cause
            if self.disk is not None and self.disk.exceeded(members):
                return "disk"
            if late := clock.exceeded():
                return late
            look = time.monotonic() + min(_GLANCE_S, max(0.005, clock.limits["cpu_s"] - cpu))


def _exceeded(limits: dict[str, Any], cpu_s: float, memory_bytes: int, tasks: int, outputs: list[int]) -> str | None:
    """Return the limit that a run exceeds, or None."""
    if tasks > limits["processes"]:  # before the memory that they take; mostly the kernel has refused more itself
        return "processes"
    if memory_bytes > limits["memory_bytes"]:
        return "memory"
    if any(os.fstat(fd).st_size > limits["output_bytes"] for fd in outputs):
        return "output"
    return "cpu" if cpu_s > limits["cpu_s"] else None


def end_all(tribe: Tribe, outcome: RunOutcome, known: dict[int, bool]) -> None:
    """Kill and reap all processes of the run, and add up their CPU time and memory.

    known: True for the program's own process, False for processes that do not belong to the run; others were left
    behind by the program.
    """
    while not _reap(outcome, known, os.WNOHANG):
        tribe.kill()
        if tribe.atomic:
            _reap(outcome, known, 0)
        else:
            time.sleep(0.001)


def _reap(outcome: RunOutcome, known: dict[int, bool], flags: int) -> bool:
    """Reap what has ended (flags 0: wait for it).

    True when no child is left: orphans become children of this process.
    """
    while True:
        try:
            pid, status, usage = os.wait4(-1, flags)
        except ChildProcessError:
            return True
        if pid == 0:
            return False
        ours = known.get(pid)
        if ours is False:
            continue
        outcome.add(usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10)
        if ours:
            outcome.set_status(status)
        else:
            outcome.left_behind += 1


def namespace_tribe() -> Tribe:
    """Tier A: all of this pid namespace except pid 1, this process. The kernel's kill(-1) is atomic against fork."""

    def members() -> list[int]:
        return [int(name) for name in os.listdir(procfs.at("")) if name.isdigit() and name != "1"]

    return Tribe(members, lambda: _kill(-1), atomic=True)


def uid_tribe(uid: int, killer: int | None) -> Tribe:
    """Tier B as root: all processes of a uid that only this jail uses, killed by one process that takes that uid.

    Its real uid is `killer`, which no other process has: it may signal them, and none of them can stop it. Without such
    a uid they are searched in /proc.
    """
    if killer is None:
        return searched_tribe()

    def kill() -> None:
        pid = os.fork()
        if pid == 0:
            try:
                os.setresuid(killer, uid, killer)
                _kill(-1)
            finally:
                os._exit(0)
        os.waitpid(pid, 0)

    return Tribe(descendant_pids, kill, atomic=False)


def domain_tribe() -> Tribe:
    """Tier B without root: the Landlock domain scopes signals, so kill(-1) reaches only descendants."""
    return Tribe(descendant_pids, lambda: _kill(-1), atomic=True)


def searched_tribe() -> Tribe:
    """Descendants, as /proc lists them; stopped first, so that they cannot fork during the search.

    The only way in tier C.
    """

    def kill() -> None:
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in descendant_pids():
                _kill(pid, number)

    return Tribe(descendant_pids, kill, atomic=False)


def descendant_pids(root: int | None = None) -> list[int]:
    """Return the pids of all descendants of `root`, by default of this process."""
    found: list[int] = []
    queue = [os.getpid() if root is None else root]
    while queue:
        pid = queue.pop()
        try:
            for thread in os.listdir(procfs.at(f"{pid}/task")):
                queue += [
                    int(item) for item in read_proc_file(procfs.at(f"{pid}/task/{thread}/children"), 1 << 20).split()
                ]
        except (OSError, ValueError):
            continue
        found.append(pid)
    return found[1:]


def is_ending(pid: int) -> bool:
    """Return whether every thread of the process is exiting, or the process is gone."""
    try:
        return all(_ends(procfs.at(f"{pid}/task/{thread}/stat")) for thread in os.listdir(procfs.at(f"{pid}/task")))
    except OSError:
        return True


def _ends(stat: str) -> bool:
    try:
        return bool(int(read_proc_file(stat).rpartition(b")")[2].split()[6]) & _PF_EXITING)
    except OSError:
        return True


def _kill(pid: int, number: int = signal.SIGKILL) -> None:
    with suppress(ProcessLookupError, PermissionError):  # already gone, or nothing there to kill
        os.kill(pid, number)
