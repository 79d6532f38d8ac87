"""Runs in one jail: hand them over, take what came out of each, in order. The life of the jail itself is `tree`'s.

    judge process ── Run: request + descriptors ──▶ jail ── RunResult ──▶ judge process

stdin is sealed, outputs are capped by RLIMIT_FSIZE and by the watcher, and no process reads a pipe that a program
writes, so nothing can block.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from sandbox.core.nouns import MIB, Isolation
from sandbox.errors import (
    Cancelled,
    IsolationUnavailable,
    SandboxError,
    Starved,
    ToolchainMissing,
    WorkerDied,
    WrongType,
    is_shortage,
    not_started,
)
from sandbox.jail.run import JailedRun, RunResult, Sent
from sandbox.jail.tree import Tree
from sandbox.kernel import uids
from sandbox.languages import toolchain
from sandbox.zygote import namespaces
from sandbox.zygote.inbox import CANCEL, FORGET
from sandbox.zygote.run_clock import WALL_STRETCH
from sandbox.zygote.watch import SHORTAGE

_GRACE_S: Final = 15.0  # a zygote answers this long after the last possible end of a run, or counts as dead
_SHORT: Final = "this machine, or its container, ran out of memory: free some, or use fewer workers"
Packages = Sequence[str] | Mapping[str, list[str]]
TIERS: Final[tuple[Isolation, ...]] = ("A", "B")


class Jail:
    """A started jail. Use as a context manager, or call `close`."""

    lost_s = 0.0
    """Seconds in which the last run waited for the machine, not by its own will."""

    def __init__(
        self,
        isolation: Isolation = "auto",
        *,
        run_dir: str | None = None,
        work_bytes: int = 96 * MIB,
        packages: Packages = (),
        shared: str | None = None,
        readable: Sequence[str] = (),
        root_files: str | None = None,
        network: bool = False,
        links: Mapping[str, str] | None = None,
        fixed_hashes: bool = True,
    ) -> None:
        """Start the jail.

        Raises IsolationUnavailable when the machine cannot isolate as requested; `auto` never means C. `packages` of
        this interpreter (("numpy",)) are imported once, for every Python program, and make each run slower; a mapping
        is the result of `find_packages`. Raises ToolchainMissing for a package that is not installed. `shared` is a
        directory that every run sees read-only, at `self.shared` (None where that is not possible). `fixed_hashes`:
        texts have the same hashes in every run in Python; otherwise the jail has a secret of its own.

        `readable` paths are seen read-only where they are. Tier A only: `root_files`, a directory whose content is seen
        in the place of the machine's tools; `links`, names at the top ("/app") that lead to names in the work
        directory; `network`, a loopback interface of the jail's own, whose one listening socket, `self.listener`, the
        caller serves and closes.
        """
        if isolation not in ("auto", *TIERS, "C"):
            raise IsolationUnavailable(f"isolation={isolation!r} is unknown; use auto, A, B or C")
        self.work_bytes = work_bytes
        self._packages, self.shared_from = find_packages(packages), shared
        self.runs = 0
        self.broken, self.run_dir = False, run_dir
        self._partners: dict[bool, Jail] = {}
        self._under_way: deque[Sent] = deque()
        roots = (*(toolchain.roots() if root_files is None else ()), *readable)
        show: dict[str, Any] = {"packages": self._packages, "roots": roots, "root_files": root_files}
        show |= {"network": network, "links": dict(links or {})}
        refused = []
        for tier in TIERS if isolation == "auto" else (isolation,):
            if tier == "B" and shared and os.geteuid() == 0 and not uids.may_enter(shared):
                shared = None  # its programs have another uid
            try:
                self._tree = Tree(tier, run_dir, work_bytes, {**show, "shared": shared}, fixed_hashes=fixed_hashes)
                break
            except IsolationUnavailable as error:
                refused.append(str(error))
        else:
            way_out = "" if isolation == "C" else "; see `sandbox doctor`, or ask for isolation='C' (rlimits only)"
            raise IsolationUnavailable("; ".join(refused) + way_out)
        self.tier = self._tree.tier
        self.mechanisms = self._tree.mechanisms
        self.ahead = self._tree.ahead
        """Number of runs that may be started ahead of the one that is waited for."""
        self.shared = namespaces.SHARED if self.tier == "A" and shared else shared
        self.listener = self._tree.listener
        """Reached by the programs of a jail with a network, at the address of its `getsockname`."""
        self.process = self._tree.process
        """The zygote; in tier A the process outside that waits for it."""
        self.directory = self._tree.directory
        """Removed when the jail is closed."""
        self.group = self._tree.group
        """Name of the jail's cgroup, if it has one."""

    def pids(self) -> tuple[int, ...]:
        """The first processes of the jail and of its partners; all others descend from them."""
        return (self.process.pid, *(pid for partner in self._partners.values() for pid in partner.pids()))

    def partner(self, *, fixed_hashes: bool = True) -> Jail:
        """A second jail of the same tier, for a program that runs beside the judged one.

        Started on first use, closed with this one.
        """
        if fixed_hashes in self._partners and self._partners[fixed_hashes].broken:
            self._partners.pop(fixed_hashes).close()
        if fixed_hashes not in self._partners:
            self._partners[fixed_hashes] = Jail(
                self.tier,
                run_dir=self.run_dir,
                work_bytes=self.work_bytes,
                packages=self._packages,
                shared=self.shared_from,
                fixed_hashes=fixed_hashes,
            )
        return self._partners[fixed_hashes]

    def run(self, run: JailedRun, *, cancel_fd: int | None = None) -> RunResult:
        """Run to the end.

        Raises WorkerDied when the jail fails, Cancelled when `cancel_fd` becomes readable, Starved.
        """
        self.start(run)
        return self.finish(cancel_fd=cancel_fd)

    def start(self, run: JailedRun) -> None:
        """Queue a run; `finish` returns the results in order.

        Raises WorkerDied when the jail fails, SandboxError when this process has no resources left.
        """
        if self.broken:
            raise WorkerDied("the jail has failed; start another")
        self.runs += 1
        sent = Sent(run)
        self._under_way.append(sent)
        try:
            request, fds = sent.pack()
            self._tree.send(request, fds)
        except (OSError, MemoryError) as error:  # else another result would be taken for this one
            failed = self._fail(error)
            raise SandboxError(not_started("a run", error)) if is_shortage(error) else failed from error

    def finish(self, *, cancel_fd: int | None = None) -> RunResult:
        """Return the result of the earliest queued run. Raises like `run`; a cancel ends all queued runs."""
        if self.broken:
            raise WorkerDied("the jail has failed; start another")
        limits = self._under_way[0].run.limits
        try:
            deadline = time.monotonic() + limits.wall_limit_s * WALL_STRETCH + _GRACE_S
            reply, got = self._tree.receive(deadline, cancel_fd)
            if reply["error"]:
                raise WorkerDied(reply["error"])
            sent = self._under_way.popleft()
            self.lost_s = reply["lost_s"]
            try:
                if reply["cause"] not in ("cancelled", "starved", SHORTAGE):
                    done = sent.result(reply, got)
                    if done.cause is None and done.exit_code != 0:
                        self.check_memory()
                    return done
            finally:
                for fd in (*sent.opened, *got):
                    os.close(fd)
        except (OSError, ValueError, WorkerDied) as error:
            raise self._fail(error) from error
        if reply["cause"] == SHORTAGE:
            raise Starved(_SHORT)
        if reply["cause"] == "starved":
            raise Starved(
                f"a run waited for the machine {self.lost_s:.0f} of {reply['wall_s']:.0f} s; use fewer workers"
            )
        self.drop(tell=False)
        raise Cancelled("the run was cancelled")

    def check_memory(self) -> None:
        """Raise Starved where what failed may have lost a process because others had used the memory up."""
        if self._tree.ran_short():
            raise Starved(_SHORT)

    def drop(self, *, tell: bool = True) -> None:
        """Cancel all queued runs and wait for their end. Raises WorkerDied when the jail fails."""
        if tell and self._under_way and not self.broken:
            with suppress(OSError):  # a dead zygote is noticed below
                self._tree.send(CANCEL)
        while self._under_way and not self.broken:
            with suppress(Cancelled, Starved):
                self.finish()

    def is_running(self) -> bool:
        """Return whether a process of the current run is alive and not yet exiting. For runs without a series."""
        return self._tree.is_running()

    def activity(self) -> tuple[bool, float]:
        """Return whether a thread of the current run is awake, and the run's CPU seconds so far. As `is_running`."""
        return self._tree.activity()

    def fileno(self) -> int:
        """A descriptor that becomes readable when the current run or the jail has ended."""
        return self._tree.control.fileno()

    def lap(self, cpu_s: float, wall_s: float) -> None:
        """Grant the current run further CPU and wall time: a program that answers many calls has limits for each.

        There is no reply. Raises WorkerDied when the jail fails.
        """
        try:
            self._tree.send(b"0 0 0\n" + json.dumps({"mode": "lap", "cpu_s": cpu_s, "wall_s": wall_s}).encode())
        except OSError as error:
            raise self._fail(error) from error

    def forget(self) -> None:
        """Announce that the program of the last series will not run again. There is no reply."""
        if not self.broken:
            with suppress(OSError):  # a dead zygote is noticed in the next run
                self._tree.send(FORGET)

    def _fail(self, error: Exception) -> WorkerDied:
        self.broken = True
        self._forget()
        return WorkerDied(f"the jail failed: {error}")

    def _forget(self) -> None:
        while self._under_way:
            for fd in self._under_way.popleft().opened:
                os.close(fd)

    def close(self) -> None:
        """End the jail and all its processes, within a few seconds. Safe to call twice."""
        for partner in self._partners.values():
            partner.close()
        if self.listener is not None:
            self.listener.close()
        self._tree.close()
        self._forget()

    def __enter__(self) -> Jail:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def find_packages(packages: Packages) -> dict[str, list[str]]:
    """Each package of this interpreter with its directories. Raises ToolchainMissing, WrongType."""
    if isinstance(packages, Mapping):
        return dict(packages)
    if isinstance(packages, str) or not isinstance(packages, Iterable) or not all(isinstance(x, str) for x in packages):
        raise WrongType(f'packages={packages!r}: must be a list of names, as ("numpy",), not {type(packages).__name__}')
    return {name: package_paths(name) for name in packages}


def package_paths(name: str) -> list[str]:
    """The directories that hold an installed package; none for a module of the standard library.

    Raises ToolchainMissing.
    """
    if name in sys.stdlib_module_names:
        return []
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise ToolchainMissing(f"packages={name!r} is not a package of {sys.executable}; install it there")
    home = os.path.realpath(spec.submodule_search_locations[0])
    return [path for path in (home, f"{home}.libs") if os.path.isdir(path)]
