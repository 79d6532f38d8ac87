"""Trees of processes: end with the parent, and kill a process together with everything that it started.

Standard library and ``/proc`` only, so that the reaper can load this file into a bare interpreter in a few
milliseconds. A pid alone names a process only until it is used again; wherever a pid is kept, it is kept as a
:class:`Pid`, with the start time of its process, and signals go through a pidfd.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple, NoReturn

_EXEC_S = 0.5  # longest time of an exec, in which what the process was started with cannot be read
_FREEZE_S = 0.2  # a process in uninterruptible sleep does not stop, but does not fork either


class Pid(NamedTuple):
    """One particular process; ``start`` is in clock ticks since boot (field 22 of ``/proc/pid/stat``)."""

    pid: int
    start: int


class _Stat(NamedTuple):
    parent: int
    group: int
    state: str
    start: int


def identify(pid: int) -> Pid | None:
    """The process that has this pid; None when there is none."""
    stat = _stat(pid)
    return Pid(pid, stat.start) if stat else None


def alive(process: Pid) -> bool:
    """True while the process runs; a zombie (ended, not yet reaped by its parent) is not alive."""
    stat = _stat(process.pid)
    return stat is not None and stat.start == process.start and stat.state not in "ZX"


def list_descendants(pid: int) -> list[Pid]:
    """Children, grandchildren ... of ``pid`` that are still tied to it by their parents, nearest first."""
    return _below([pid], _table())


def children(pid: int) -> list[Pid]:
    """Direct children of ``pid``."""
    return [Pid(child, stat.start) for child, stat in _table().items() if stat.parent == pid]


def marked(entry: str) -> list[Pid]:
    """Processes started with ``entry`` ("NAME=value") in their environment, whoever their parent is."""
    wanted = os.fsencode(entry)
    candidates = (pid for pid in _pids() if wanted in _read_started(pid, "environ").split(b"\0"))
    return [process for pid in candidates if pid != os.getpid() and (process := identify(pid))]


def is_tracker(pid: int) -> bool:
    """True for a resource tracker of ``multiprocessing``.

    It ends by itself after the processes that it served, and must live until then: it removes the shared memory
    that they leave behind.
    """
    return b"resource_tracker import main" in _read_started(pid, "cmdline")


def unreaped_exit_status(process: Pid) -> int | None:
    """Exit status of a zombie (negative: the signal that killed it); None while it runs, and once it was reaped."""
    fields = _stat_fields(process.pid)
    if not fields or fields[0] not in (b"Z", b"X") or int(fields[19]) != process.start:
        return None
    return os.waitstatus_to_exitcode(int(fields[49]))


def read_proc(pid: int, name: str) -> bytes:
    """Contents of ``/proc/pid/name``; empty for a process that is gone or of another user."""
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError:
        return b""


def kill_tree(
    pids: Iterable[int | Pid], deadline_s: float, *, reap: bool = True, trackers: bool = False
) -> tuple[int, ...]:
    """SIGKILL ``pids`` and all their descendants, wait until they are dead; return the pids that are not.

    Every process is stopped before its children are listed, so none can fork its way out. With ``reap``,
    children of this process are also reaped. Never touches this process, pid 1, a :class:`Pid` whose number
    was used again, nor, without ``trackers``, a resource tracker (see ``is_tracker``). Blocks.
    """
    until = time.monotonic() + deadline_s
    with contextlib.ExitStack() as held:
        fds = _freeze(pids, held, min(until, time.monotonic() + _FREEZE_S), trackers)
        for fd in fds.values():
            _send(fd, signal.SIGKILL)
        left = tuple(process.pid for process, fd in fds.items() if not _ended(fd, until))
    for process in fds if reap else ():
        with contextlib.suppress(ChildProcessError):
            os.waitpid(process.pid, os.WNOHANG)  # 0 for one that runs
    return left


def await_end(processes: Iterable[Pid], deadline_s: float) -> list[Pid]:
    """Wait until these processes have ended (a zombie has); return the processes that have not in time. Blocks."""
    until = time.monotonic() + deadline_s
    late = []
    for process in processes:
        if (fd := open_pidfd(process)) is not None:
            if not _ended(fd, until):
                late.append(process)
            os.close(fd)
    return late


def bind_to_parent(pid: int) -> None:
    """SIGKILL this process and what it started when process ``pid`` is gone, at once if it is gone already.

    Returns at once; a daemon thread sleeps on a pidfd. (``PR_SET_PDEATHSIG`` fires when the *thread* that
    started us ends.) A pid that was used again is noticed: a parent is never younger than its child. Threads
    do not survive a fork, so a forked child calls this again. Raises ValueError for a pid that cannot be a
    parent.
    """
    if pid <= 0 or pid == os.getpid():
        raise ValueError(f"pid={pid}: pass the pid of another process, as os.getppid() or the parent gave it")
    fd = _pidfd(pid)
    if fd is None:
        _end_self()
    parent, self_ = _stat(pid), _stat(os.getpid())
    if parent is None or (self_ is not None and parent.start > self_.start):
        _end_self()
    threading.Thread(target=_await_end, args=(fd,), name=f"parent-watch-{pid}", daemon=True).start()


def leave(code: int) -> NoReturn:
    """End this process at once with this exit code, after SIGKILL of what it started. Runs no handler of exits.

    The way out of a bound process: its parent may be gone, and the watching thread may just have stopped the
    children that it is about to kill. A process that ended in between would leave them standing for ever.
    """
    try:
        _end_below()
    finally:
        os._exit(code)


def _await_end(fd: int) -> None:
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    poller.poll()
    _end_self()


def _end_self() -> NoReturn:
    try:
        _end_below()
    finally:
        os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("SIGKILL returned")


def _end_below() -> None:
    """Kill our descendants, and our process group where we lead it."""
    me = os.getpid()
    group = [Pid(pid, stat.start) for pid, stat in _table().items() if stat.group == me]
    kill_tree([*list_descendants(me), *group], 1.0, reap=False)


def _freeze(pids: Iterable[int | Pid], held: contextlib.ExitStack, until: float, trackers: bool) -> dict[Pid, int]:
    """Stop the trees of ``pids``; return a pidfd for each process, to be closed by ``held``.

    Ends when a look at the table shows nothing new below processes that all stand still.
    """
    fds: dict[Pid, int] = {}
    new = [pid if isinstance(pid, Pid) else identify(pid) for pid in pids]
    while True:
        for process in new:
            if process and _may_die(process, trackers) and (fd := open_pidfd(process)) is not None:
                held.callback(os.close, fd)
                fds[process] = fd
                _send(fd, signal.SIGSTOP)
        table = _table()
        still = all(_stands(process, table) for process in fds)
        below = _below([process.pid for process in fds], table)
        new = [child for child in below if child not in fds and _may_die(child, trackers)]
        if not new and (still or time.monotonic() > until):
            return fds


def _may_die(process: Pid, trackers: bool) -> bool:
    return process.pid not in (1, os.getpid()) and (trackers or not is_tracker(process.pid))


def _stands(process: Pid, table: dict[int, _Stat]) -> bool:
    stat = table.get(process.pid)
    return stat is None or stat.start != process.start or stat.state in "TtZX"


def open_pidfd(process: Pid) -> int | None:
    """A pidfd that surely is of ``process``; None when it is gone."""
    fd = _pidfd(process.pid)
    if fd is None or identify(process.pid) == process:
        return fd
    os.close(fd)
    return None


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        if error.errno in (errno.ESRCH, errno.EINVAL):  # EINVAL, until Linux 6.15: it is being reaped
            return None
        raise


def _send(fd: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # another user's: it is reported as left
        signal.pidfd_send_signal(fd, number)


def _ended(fd: int, until: float) -> bool:
    """Wait for the end of a process; False when it still runs at ``until``."""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(max(0.0, until - time.monotonic()) * 1000))


def _below(pids: Iterable[int], table: dict[int, _Stat]) -> list[Pid]:
    """Each once, however many of ``pids`` it is below."""
    tree: dict[int, list[Pid]] = {}
    for child, stat in table.items():
        tree.setdefault(stat.parent, []).append(Pid(child, stat.start))
    found = [child for pid in pids for child in tree.pop(pid, ())]
    for process in found:  # grows while it is walked: breadth first
        found.extend(tree.pop(process.pid, ()))
    return found


def _table() -> dict[int, _Stat]:
    return {pid: stat for pid in _pids() if (stat := _stat(pid))}


def _read_started(pid: int, name: str) -> bytes:
    """Read ``/proc/pid/name`` (environ or cmdline), waiting for an exec that is under way: until it is through, the
    file is empty although the process counts as started. Empty for a process that is gone or of another user.
    """
    until, doubts = time.monotonic() + _EXEC_S, 3  # an exec may begin or end between a look at the one and the other
    with contextlib.suppress(OSError):
        while True:
            with open(f"/proc/{pid}/{name}", "rb") as file:
                if data := file.read():
                    return data
            fields = _stat_fields(pid)
            has_memory, has_environment = len(fields) > 48 and fields[20] != b"0", fields[48:49] != [b"0"]
            doubts -= has_environment
            if not has_memory or not doubts or time.monotonic() > until:
                break
            time.sleep(0 if has_environment else 0.001)
    return b""


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def _stat_fields(pid: int) -> list[bytes]:
    """``/proc/pid/stat`` behind the name (which may itself hold spaces and brackets), from the state on; empty for a
    process that is gone.
    """
    return read_proc(pid, "stat").rpartition(b")")[2].split()


def _stat(pid: int) -> _Stat | None:
    fields = _stat_fields(pid)
    return _Stat(int(fields[1]), int(fields[2]), fields[0].decode(), int(fields[19])) if fields else None
