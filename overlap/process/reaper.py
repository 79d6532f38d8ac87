"""The reaper: a tiny process that cleans up after a run, also when the run's driver was killed with SIGKILL.

It is exec'd into a bare interpreter and its own session (so Ctrl-C does not reach it), and reads from a pipe which
processes and paths belong to the run. When the driver closes the pipe or is gone, it kills those of the processes that
are alive, all their descendants and every process with the run's name in its environment, removes the paths and the
run's memory in ``/dev/shm``, and ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

from overlap.process import process_tree
from overlap.process.process_tree import Pid
from overlap.process.run_environment import RUN, child_environment, remove_shared

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path
    from types import TracebackType

_SWEEP_S = 8.0  # a sweep gives up after this long; a process in uninterruptible sleep cannot be killed
_AGAIN_S = 0.05  # between two tries to remove a directory in which a process of another owner may still write
_CLOSE_S = 15.0  # for the reaper to sweep and end
_TRACKER_S = 2.0  # so long may a resource tracker take to remove the shared memory of the killed
_DONE = b"done"

# Stand-ins for the two packages keep their __init__.py and what these import out of the bare interpreter.
_BOOT = """
import sys, types
for name in "overlap", "sandbox":
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [sys.argv[1] + "/" + name]
from overlap.process import reaper
reaper.serve_reaper(int(sys.argv[2]), sys.argv[3], detached=sys.argv[4] == "detached")
"""


class File(NamedTuple):
    """One particular file: not a later one with its name, nor a later one with its inode."""

    name: str
    device: int
    inode: int
    changed_ns: int


Owned = Pid | File | str
"""A thing that belongs to a run: a process, a file, or the path of whatever is there."""


class Reaper:
    """Cleans up after the run ``run`` (see ``run_environment.run_name``). A context manager; constructing it starts
    nothing.

    Every process that has ``run`` as ``OVERLAP_RUN`` in its environment belongs to the run. Not for several threads at
    once. A ``detached`` reaper is no child of this process, and outlives a caller that kills all its children.
    """

    def __init__(self, run: str, *, detached: bool = False) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._owned: set[Owned] = set()
        self.run, self._detached = run, detached

    def start(self) -> Reaper:
        """Start the process (20 ms). Raises OSError where no process can be started."""
        import subprocess

        if self._process is not None:
            raise RuntimeError("this reaper was already started; make a new one")
        bare = {name: value for name, value in child_environment().items() if name != RUN}
        home = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        told = [home, str(os.getpid()), self.run, "detached" if self._detached else ""]
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _BOOT, *told],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env=bare,
            start_new_session=True,
        )
        if self._detached:
            self._process.wait()  # its child goes on, and has the pipes
        return self

    def watch_pid(self, pid: int) -> None:
        """Kill this process and its descendants at the end. No effect if it is gone already."""
        if (process := process_tree.identify(pid)) is not None:
            self._own(process)

    def watch_path(self, path: Path) -> None:
        """Remove this file or directory tree at the end; it need not exist yet. Of a link, not the target.

        Raises ValueError for the home, working and temporary directory, and for all that hold one of these.
        """
        self._own(_removable(os.fspath(path)))

    def watch_file(self, path: Path) -> None:
        """Remove this file at the end if it is still the file that is there now: another run may take the name before
        this reaper, which may work long after its driver, gets to it. Raises OSError where there is no such file.
        """
        name = os.path.abspath(os.fspath(path))
        self._own(File(name, *_identity(name)))

    def close(self) -> None:
        """Sweep, and wait for the reaper's end. Safe to call twice or before ``start``."""
        import subprocess

        process, self._process = self._process, None
        if process is None:
            return
        try:
            done, _ = process.communicate(timeout=_CLOSE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            done = b""
        if done != _DONE:  # it is late, or was killed before its work was done
            sweep_run(self._owned, self.run, process_tree.identify(os.getpid()))

    def __enter__(self) -> Reaper:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _own(self, it: Owned) -> None:
        self._owned.add(it)
        if self._process is None or self._process.stdin is None:
            raise RuntimeError("the reaper does not run: call start(), or use it as a context manager")
        with contextlib.suppress(BrokenPipeError):  # it was killed: close() then sweeps in its place
            self._process.stdin.write(f"{json.dumps(it)}\n".encode())
            self._process.stdin.flush()


def sweep_run(owned: set[Owned], run: str, driver: Pid | None) -> None:
    """Kill the processes of ``owned``, their descendants and all that are named after ``run``; then remove paths, files
    and shared memory.

    Resource trackers of ``multiprocessing`` come last, for they remove the shared memory of the killed; one
    whose parent is the living ``driver`` is left alone and ends with it.
    """
    until, pids = time.monotonic() + _SWEEP_S, [it for it in owned if isinstance(it, Pid)]
    while time.monotonic() < until:
        victims, trackers = _living(pids, run, driver)
        if victims:
            process_tree.kill_tree(victims, until - time.monotonic(), reap=False)
        elif trackers:
            late = process_tree.await_end(trackers, _TRACKER_S)
            process_tree.kill_tree(late, until - time.monotonic(), reap=False, trackers=True)
        else:
            break
    remove_shared(run)
    for name, *identity in (it for it in owned if isinstance(it, File)):
        with contextlib.suppress(OSError):
            if _identity(name) == tuple(identity):
                os.unlink(name)
    paths = [it for it in owned if isinstance(it, str)]
    # A process that is not of the run by its environment (an agent program whose subreaper ends it) may still write
    # there, so a removal that fails is tried again.
    while (paths := [path for path in sorted(paths) if not _remove(path)]) and time.monotonic() < until:
        time.sleep(_AGAIN_S)


def serve_reaper(driver_pid: int, run: str, *, detached: bool = False) -> None:
    """Run in the reaper's process: listen on fd 0 until the driver closes it or is gone, sweep, say so on fd 1.
    ``detached``: in a process whose parent is not the driver.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    driver = process_tree.identify(driver_pid) if os.getppid() == driver_pid else None
    if detached and os.fork():
        os._exit(0)
    owned = _obey(process_tree.open_pidfd(driver) if driver else None)
    sweep_run(owned, run, driver if driver and process_tree.alive(driver) else None)
    with contextlib.suppress(BrokenPipeError):
        os.write(1, _DONE)


def _obey(driver_fd: int | None) -> set[Owned]:
    """Keep the list of what belongs to the run, until the pipe ends or the driver does.

    The pidfd is needed because a forked child of the driver may hold the pipe open after it.
    """
    owned: set[Owned] = set()
    poller = select.poll()
    poller.register(0, select.POLLIN)
    if driver_fd is not None:
        poller.register(driver_fd, select.POLLIN)
    rest = b""
    while 0 in dict(poller.poll(None if driver_fd is not None else 0)):  # else the driver is gone, and all was read
        if not (data := os.read(0, 65536)):
            break
        *lines, rest = (rest + data).split(b"\n")
        owned.update(map(_read, lines))
    return owned


def _read(line: bytes) -> Owned:
    found = json.loads(line)
    if isinstance(found, str):
        return found
    return Pid(*found) if len(found) == 2 else File(*found)


def _living(pids: list[Pid], run: str, driver: Pid | None) -> tuple[list[Pid], list[Pid]]:
    """Processes of the run that are alive: (those to kill, resource trackers that have work to finish)."""
    found = dict.fromkeys(process_tree.marked(f"{RUN}={run}"))
    for process in filter(process_tree.alive, pids):
        found.update(dict.fromkeys([process, *process_tree.list_descendants(process.pid)]))
    own = [] if driver is None else process_tree.children(driver.pid)
    spared = {driver, *(child for child in own if process_tree.is_tracker(child.pid))}
    living = [process for process in found if process_tree.alive(process) and process not in spared]
    trackers = [process for process in living if process_tree.is_tracker(process.pid)]
    return [process for process in living if process not in trackers], trackers


def _removable(path: str) -> str:
    import tempfile

    name = os.path.abspath(path)
    real = os.path.join(os.path.realpath(os.path.dirname(name)), os.path.basename(name))
    for keep in map(os.path.realpath, (os.path.expanduser("~"), os.getcwd(), tempfile.gettempdir())):
        if os.path.commonpath([real, keep]) == real:
            raise ValueError(f"path={path!r}: {keep} is inside it; watch a directory that belongs to the run alone")
    return name


def _identity(name: str) -> tuple[int, int, int]:
    found = os.lstat(name)
    return found.st_dev, found.st_ino, found.st_ctime_ns


def _remove(path: str) -> bool:
    """Remove a file, link or tree; True when nothing is left of it."""
    from sandbox.kernel.clear import remove_tree  # a judged program may have been at work there

    if os.path.isdir(path) and not os.path.islink(path):
        remove_tree(path)
    else:
        with contextlib.suppress(OSError):
            os.unlink(path)
    return not os.path.lexists(path)
