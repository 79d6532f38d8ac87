"""Runs in one jail: hand them over, take what came out of each, in order. The life of the jail itself is `tree`'s.

    judge process ── Run: request + descriptors ──▶ jail ── RunResult ──▶ judge process

stdin is sealed, outputs are capped by RLIMIT_FSIZE and by the watcher, and nobody reads a pipe that a program writes,
so nothing can block.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Final

from sandbox.core import MIB, Isolation
from sandbox.errors import Cancelled, IsolationUnavailable, ToolchainMissing, WorkerDied
from sandbox.jail.run import JailedRun, RunResult, Sent
from sandbox.jail.tree import Tree
from sandbox.kernel import uids
from sandbox.languages import toolchain
from sandbox.zygote import CANCEL, FORGET, WALL_STRETCH, namespaces

_GRACE_S: Final = 15.0  # a zygote answers this long after the last possible end of a run, or counts as dead
Packages = Sequence[str] | Mapping[str, list[str]]
TIERS: Final[tuple[Isolation, ...]] = ("A", "B")


class Jail:
    """One entered jail. Use as a context manager, or call `close`."""

    def __init__(
        self,
        isolation: Isolation = "auto",
        *,
        run_dir: str | None = None,
        work_bytes: int = 96 * MIB,
        packages: Packages = (),
        shared: str | None = None,
    ) -> None:
        """Start it. Raises IsolationUnavailable when the machine cannot isolate as asked; `auto` never means C.

        `packages` of this interpreter (("numpy",)) are imported once, for every Python program; they make each run
        slower. Raises ToolchainMissing for one that is not installed. A mapping is what `find_packages` found.
        `shared` is a directory of ours that every run sees, read-only: at `self.shared`, which is None where it cannot.
        """
        if isolation not in ("auto", *TIERS, "C"):
            raise IsolationUnavailable(f"isolation={isolation!r} is unknown; use auto, A, B or C")
        self.work_bytes = work_bytes
        self._packages = find_packages(packages)
        self.shared_from = shared
        self.runs = 0
        self.broken = False
        self.run_dir = run_dir
        self._partner: Jail | None = None
        self._under_way: deque[Sent] = deque()
        refused = []
        for tier in TIERS if isolation == "auto" else (isolation,):
            if tier == "B" and shared and os.geteuid() == 0 and not uids.may_enter(shared):
                shared = None  # its programs have another uid
            show = {"packages": self._packages, "shared": shared, "roots": toolchain.roots()}
            try:
                self._tree = Tree(tier, run_dir, work_bytes, show)
                break
            except IsolationUnavailable as error:
                refused.append(str(error))
        else:
            way_out = "" if isolation == "C" else "; see `sandbox doctor`, or ask for isolation='C' (rlimits only)"
            raise IsolationUnavailable("; ".join(refused) + way_out)
        self.tier = self._tree.tier
        self.mechanisms = self._tree.mechanisms
        self.ahead = self._tree.ahead
        """Runs that may be started beyond the one that is waited for."""
        self.shared = namespaces.SHARED if self.tier == "A" and shared else shared

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The zygote, or in tier A the one that waits for it outside."""
        assert self._tree.process is not None
        return self._tree.process

    @property
    def directory(self) -> str:
        """Gone when the jail is closed."""
        return self._tree.directory

    @property
    def group(self) -> str:
        """What its cgroup is called, where it has one."""
        return self._tree.group

    def pids(self) -> tuple[int, ...]:
        """The first process of it, and of its partner; all others are below these."""
        return (self.process.pid, *(self._partner.pids() if self._partner is not None else ()))

    def partner(self) -> Jail:
        """A second jail of the same tier, for who runs beside a program. Started on the first call, closed with us."""
        if self._partner is not None and self._partner.broken:
            self._partner.close()
            self._partner = None
        if self._partner is None:
            self._partner = Jail(
                self.tier,
                run_dir=self.run_dir,
                work_bytes=self.work_bytes,
                packages=self._packages,
                shared=self.shared_from,
            )
        return self._partner

    def run(self, run: JailedRun, *, cancel_fd: int | None = None) -> RunResult:
        """Run it to its end. Raises WorkerDied when the jail fails, Cancelled when `cancel_fd` becomes readable."""
        self.start(run)
        return self.finish(cancel_fd=cancel_fd)

    def start(self, run: JailedRun) -> None:
        """Hand a run to the jail, which does it when those before it have ended. `finish` takes the results in order.

        Raises WorkerDied when the jail fails.
        """
        if self.broken:
            raise WorkerDied("the jail failed before; start another")
        self.runs += 1
        sent = Sent(run)
        self._under_way.append(sent)
        try:
            request, fds = sent.pack()
            self._tree.send(request, fds)
        except (OSError, MemoryError) as error:  # whatever else is under way would be taken for this one
            raise self._fail(error) from error

    def finish(self, *, cancel_fd: int | None = None) -> RunResult:
        """The result of the earliest run that is under way. Raises as `run` does; a cancel ends all that are."""
        if self.broken:
            raise WorkerDied("the jail failed before; start another")
        limits = self._under_way[0].run.limits
        try:
            deadline = time.monotonic() + limits.wall_limit_s * WALL_STRETCH + _GRACE_S
            reply, got = self._tree.receive(deadline, cancel_fd)
            if reply["error"]:
                raise WorkerDied(reply["error"])
            sent = self._under_way.popleft()
            try:
                if reply["cause"] != "cancelled":
                    return sent.result(reply, got)
            finally:
                for fd in (*sent.opened, *got):
                    os.close(fd)
        except (OSError, ValueError, WorkerDied) as error:
            raise self._fail(error) from error
        self.drop(tell=False)
        raise Cancelled("the run was cancelled")

    def drop(self, *, tell: bool = True) -> None:
        """Cancel what is under way, and wait until it has ended. Raises WorkerDied when the jail fails."""
        if tell and self._under_way and not self.broken:
            with suppress(OSError):  # a dead zygote shows below
                self._tree.send(CANCEL)
        while self._under_way and not self.broken:
            with suppress(Cancelled):
                self.finish()

    def is_running(self) -> bool:
        """A process of the run that is under way is alive, and has not begun to end. For runs without a series."""
        return self._tree.is_running()

    def fileno(self) -> int:
        """Readable when the run that is under way has ended, or the jail has."""
        return self._tree.control.fileno()

    def lap(self, cpu_s: float, wall_s: float) -> None:
        """From here on the run that is under way may use so much more CPU time, and so much wall time: a program that
        is asked many things is under limits for each. Nothing is answered. Raises WorkerDied when the jail fails.
        """
        try:
            self._tree.send(b"0 0 0\n" + json.dumps({"mode": "lap", "cpu_s": cpu_s, "wall_s": wall_s}).encode())
        except OSError as error:
            raise self._fail(error) from error

    def forget(self) -> None:
        """The program of the last series will not run again. Nothing is answered."""
        if not self.broken:
            with suppress(OSError):  # a dead zygote shows in the next run
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
        """End the jail and all that is in it; at most a few seconds. Safe to call twice."""
        if self._partner is not None:
            self._partner.close()
        self._tree.close()
        self._forget()

    def __enter__(self) -> Jail:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def find_packages(packages: Packages) -> dict[str, list[str]]:
    """Each package of this interpreter with its directories. Raises ToolchainMissing."""
    return dict(packages) if isinstance(packages, Mapping) else {name: package_paths(name) for name in packages}


def package_paths(name: str) -> list[str]:
    """The directories that an installed package lives in; none for a module of the standard library.

    Raises ToolchainMissing.
    """
    if name in sys.stdlib_module_names:
        return []
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise ToolchainMissing(f"packages={name!r} is no package of {sys.executable}; install it there")
    home = os.path.realpath(spec.submodule_search_locations[0])
    return [path for path in (home, f"{home}.libs") if os.path.isdir(path)]
