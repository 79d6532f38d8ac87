"""Processes that belong together: started once, awaited by many, ended once and with one cause.

    spawn ──▶ guard: await what they do ──▶ fail: the first cause stays, all who wait wake, all are killed ──▶ close

The engine, the learner and each reward worker are such processes; ``calls`` adds the calls that they serve. The sandbox
ends its own processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from overlap.process import process_tree, run_environment

CAUSE_S = 1.0
"""Seconds after which a failure is reported whose cause may yet turn up: a process that dies often sends the reason a
moment later, and one that loses a connection reports that before the death at the other end is noticed."""
_KILL_S = 10.0  # for the kernel to end a killed process, memory of many GiB included


class ChildProcesses:
    """Processes that end together: with the first of them, or when they are closed. Constructing it starts nothing.

    ``name`` is what messages call them ("engine"), ``fault`` makes the error that is raised, ``scratch`` is the run's
    directory, and ``log`` takes what the processes print. All methods but ``pids`` belong to one event loop.
    """

    def __init__(self, name: str, fault: Callable[[str], Exception], scratch: Path, log: Path | None = None) -> None:
        self.name, self.log = name, log
        self._fault, self._scratch = fault, scratch
        self._token = f"{run_environment.run_name(scratch)}-{secrets.token_hex(3)}"
        self._born: list[subprocess.Popen[bytes]] = []
        self._watched: dict[int, int] = {}  # pid -> pidfd
        self._waiting: dict[asyncio.Task[object], int] = {}
        self._struck: set[asyncio.Task[object]] = set()  # tasks that were woken by the end
        self._ended = asyncio.Event()
        self._cause: Exception | None = None
        self._likely: Exception | str | None = None
        self._said = False
        self._died = False

    @property
    def folder(self) -> Path:
        """Directory of these processes: made by the first ``spawn``, removed by ``close``."""
        return self._scratch / f"{self.name}-{self._token[-6:]}"

    @property
    def over(self) -> bool:
        """True once the processes have failed or were closed."""
        return self._cause is not None

    def spawn(
        self, title: str, argv: Sequence[str], environment: Mapping[str, str], **options: Any
    ) -> subprocess.Popen[bytes]:
        """Start ``sys.executable argv``, in ``folder`` and in a session of its own (Ctrl-C is the driver's to handle);
        ``options`` are further arguments of ``Popen``, or take the place of ours.

        Its death ends all of them, and so does a start that fails; ``title`` names it in the error. Raises the cause
        when they are over.
        """
        self.check()
        with self.starting(title):
            process = self.popen(argv, environment, options)
            pidfd = os.pidfd_open(process.pid)
        self._watched[process.pid] = pidfd
        asyncio.get_running_loop().add_reader(pidfd, self._on_exit, process, title)
        return process

    @contextlib.contextmanager
    def starting(self, title: str) -> Iterator[None]:
        """End the processes and raise "``title`` cannot be started" for an OSError inside."""
        try:
            yield
        except OSError as exc:
            self.fail(f"{title} cannot be started: {_reason(exc)}")
            self.check()

    def popen(
        self, argv: Sequence[str], environment: Mapping[str, str], options: Mapping[str, Any]
    ) -> subprocess.Popen[bytes]:
        """As ``spawn``, without a loop that notices its death. Raises OSError; for any thread."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        mine = {
            run_environment.RUN: run_environment.run_name(self._scratch),
            run_environment.LIFE: self._token,
            run_environment.PARENT: str(os.getpid()),
            "TMPDIR": str(self.folder.absolute()),
        }
        with contextlib.ExitStack() as stack:
            out = stack.enter_context(self.log.open("ab")) if self.log is not None else subprocess.DEVNULL
            known: dict[str, Any] = {"cwd": self.folder, "stdout": out, "stderr": subprocess.STDOUT}
            process: subprocess.Popen[bytes] = subprocess.Popen(
                [sys.executable, *argv],
                env=run_environment.child_environment(**(mine | dict(environment))),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                **(known | dict(options)),
            )
        self._born.append(process)
        return process

    def pids(self) -> tuple[int, ...]:
        """Pids of the processes, and of what they have started, that are alive."""
        born = [known for p in self._born if p.returncode is None and (known := process_tree.identify(p.pid))]
        tree = [*born, *(below for process in born for below in process_tree.list_descendants(process.pid))]
        return tuple(process.pid for process in tree if process_tree.alive(process))

    def check(self) -> None:
        """Raise the cause when the processes are over."""
        if self._cause is not None:
            raise copy.copy(self._cause) from self._cause.__cause__

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        """End what is awaited inside when the processes end, with their cause."""
        self.check()
        task = asyncio.current_task()
        assert task is not None
        self._waiting[task] = self._waiting.get(task, 0) + 1
        try:
            yield
        except asyncio.CancelledError:
            if task in self._struck and task.uncancel() == 0:
                self._struck.discard(task)
                self.check()
            raise
        finally:
            self._waiting[task] -= 1
            if not self._waiting[task]:
                del self._waiting[task]
                self._struck.discard(task)

    async def wait_dead(self) -> None:
        """Raise the cause when the processes die; return when they are closed."""
        await self._ended.wait()
        if self._died:
            self.check()

    def fail(self, cause: Exception | str) -> None:
        """Kill all processes and raise ``cause`` in everything that waits for them; only the first cause counts."""
        self._end(self._fault(cause) if isinstance(cause, str) else cause, died=True)

    def fail_soon(self, cause: Exception | str, *, said: bool = False) -> None:
        """As ``fail``, after CAUSE_S, unless a better cause turns up: the report of a process (``said``) is better than
        its exit code.
        """
        if self._likely is None or (said and not self._said):
            self._likely, self._said = cause, said
        asyncio.get_running_loop().call_later(CAUSE_S, lambda: self.fail(self._likely or cause))

    async def close(self) -> None:
        """End the processes within some seconds and remove what they shared. Safe to call twice or before a start."""
        self._end(self._fault(f"the {self.name} was closed"), died=False)
        for pid in list(self._watched):
            self._unwatch(pid)
        await asyncio.to_thread(self.bury)

    def _end(self, cause: Exception, *, died: bool) -> None:
        if self._cause is not None:
            return
        self._cause, self._died = cause, died
        self._ended.set()
        for task in self._waiting.keys() - self._struck:
            self._struck.add(task)
            task.cancel()
        for process in self._born:
            if process.poll() is None:
                process.kill()  # what it started is bound to it

    def _on_exit(self, process: subprocess.Popen[bytes], title: str) -> None:
        self._unwatch(process.pid)
        code = process.wait()  # its pidfd says that it has ended
        self.died(f"{title} (pid {process.pid})", code)

    def died(self, who: str, code: int | None) -> None:
        """End all processes because this one has ended: at once where a signal killed it (negative ``code``)."""
        text = self.obituary(who, code)
        if code is not None and code < 0:
            self.fail(text)
        else:
            self.fail_soon(text)

    def obituary(self, who: str, code: int | None) -> str:
        """Describe how a process ended, where its output is, and the last error in there."""
        return f"{who} {describe_exit(code)}{log_hint(self.log)}"

    def _unwatch(self, pid: int) -> None:
        asyncio.get_running_loop().remove_reader(self._watched[pid])
        os.close(self._watched.pop(pid))

    def bury(self) -> None:
        """Kill the processes, wait for their end, and remove what they shared. Blocks; for any thread."""
        if self._born:
            with contextlib.suppress(OSError):  # no descriptor is left to look with; what they started is bound to them
                process_tree.kill_tree([p.pid for p in self._born if p.returncode is None], _KILL_S, reap=False)
                orphans = process_tree.marked(f"{run_environment.LIFE}={self._token}")
                process_tree.kill_tree(orphans, _KILL_S, reap=False, trackers=True)
            until = time.monotonic() + _KILL_S
            for process in self._born:
                process.kill()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, until - time.monotonic()))
            run_environment.remove_shared(self._token)
        shutil.rmtree(self.folder, ignore_errors=True)


def _reason(exc: OSError) -> str:
    """The system's message with the path, and the way out."""
    said = exc.strerror or str(exc)
    if exc.filename is None:
        return f"{said}; end other programs, or raise the limits that `ulimit -a` shows"
    return f"{said}: {exc.filename}; free space there or choose another place (TMPDIR, run.dir)"


def describe_exit(code: int | None) -> str:
    """Describe how a process ended, from its exit code (negative: the signal that killed it; None: not known)."""
    if code is None:
        return "died"
    if code >= 0:
        return f"exited with code {code}"
    return f"was killed by signal {-code} ({signal.Signals(-code).name})"


_VAGUE = re.compile("root cause above|see (the )?(stack )?trace above", re.IGNORECASE)
"""Words of a library about an error whose cause it has printed before."""


def is_vague(text: str) -> bool:
    """True when an error says only that its cause was printed before."""
    return _VAGUE.search(text) is not None


def log_hint(log: Path | None) -> str:
    """Say where to look ("; see PATH"), with the last line of the log that names an error and not only the place of
    another one; "" without a log.
    """
    if log is None:
        return ""
    lines: list[str] = []
    with contextlib.suppress(OSError), log.open("rb") as file:  # a death is reported whether it can be read or not
        file.seek(max(0, os.fstat(file.fileno()).st_size - 65536))
        lines = file.read().decode(errors="replace").splitlines()
    errors = [line.strip() for line in lines if "Error:" in line or "error:" in line]
    errors = [line for line in errors if not is_vague(line)] or errors
    return f"; see {log}" + (f": {errors[-1][-300:]}" if errors else "")
