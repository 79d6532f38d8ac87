"""An agent program under a subreaper: its exit, the end of its stderr, and the end of all processes that it started."""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from overlap.core.aio import shielded_thread
from overlap.core.errors import RolloutError
from overlap.process import process_tree, subreaper
from overlap.process.process_tree import Pid
from overlap.process.run_environment import LIFE, PARENT, child_environment

KILL_S = 5.0
END_S, NAMED = 30.0, 5
"""Seconds after which processes that still run are given up; the error names the first NAMED."""
TAIL_BYTES = 4000


class StderrTail:
    """The end of what a program writes to stderr, read on the running event loop until ``close``.

    ``target`` is the program's end of the pipe, closed here by ``close_target`` once the program has it.
    """

    def __init__(self) -> None:
        self._source, self.target = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._source, False)  # our end only: for a program, a full pipe that does not block is an error
        self._said, self._loop = b"", asyncio.get_running_loop()
        self._loop.add_reader(self._source, self.listen)

    @property
    def text(self) -> str:
        return self._said.decode(errors="replace").strip()

    def listen(self) -> None:
        """Read what is there."""
        try:
            said = os.read(self._source, 1 << 16)
        except BlockingIOError:
            return
        self._said = (self._said + said)[-TAIL_BYTES:]
        if not said:
            self._loop.remove_reader(self._source)

    def close_target(self) -> None:
        os.close(self.target)

    def close(self) -> None:
        self._loop.remove_reader(self._source)
        os.close(self._source)


class HarnessProcess:
    """Starts ``argv`` in ``folder``, with ``own`` variables, in a session of its own; ``close`` must be called. Belongs
    to the running event loop. Raises OSError where it cannot be started.

    ``ended`` is set when the program has ended; ``code`` is its exit status (more than 128: a signal), ``tail`` the end
    of what it wrote to stderr.
    """

    def __init__(self, argv: Sequence[str], folder: Path, own: Mapping[str, str]) -> None:
        self._mark = secrets.token_hex(8)
        known = child_environment(**own, **{LIFE: self._mark})
        for name in (PARENT, "PYTHONPATH"):  # its imports are not ours
            known.pop(name, None)
        self._stderr = StderrTail()
        with ExitStack() as undo:
            undo.callback(self._stderr.close)
            try:
                self._process = subprocess.Popen(
                    subreaper.subreaper_command(argv),
                    cwd=folder,
                    env=known,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=self._stderr.target,
                    start_new_session=True,
                )
            finally:
                self._stderr.close_target()
            undo.pop_all()
        self.ended, self._loop = asyncio.Event(), asyncio.get_running_loop()
        self._pidfd = os.pidfd_open(self._process.pid)
        self._loop.add_reader(self._pidfd, self._on_end)

    @property
    def code(self) -> int:
        """Exit status; 0 while it runs."""
        code = self._process.returncode or 0
        return code if code >= 0 else 128 - code

    @property
    def tail(self) -> str:
        return self._stderr.text

    async def close(self) -> None:
        """Kill every process of the program: those below its subreaper and, if that was killed, those with its mark.

        Raises RolloutError where processes restart themselves faster than they can be ended.
        """
        self._stderr.listen()
        try:
            await shielded_thread(self._kill)
        finally:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._stderr.close()
            self.ended.set()

    def _kill(self) -> None:
        if self._process.poll() is None:
            process_tree.kill_tree([self._process.pid], KILL_S, reap=False, trackers=True)
        until = time.monotonic() + END_S
        while left := process_tree.marked(f"{LIFE}={self._mark}"):
            if time.monotonic() > until:
                raise RolloutError(
                    f"episode.command: processes that it started still run after {END_S:g} s of SIGKILL: {_named(left)}"
                )
            process_tree.kill_tree(left, KILL_S, reap=False, trackers=True)
        self._process.wait(KILL_S)

    def _on_end(self) -> None:
        self._loop.remove_reader(self._pidfd)
        self._process.poll()
        self.ended.set()


def _named(processes: Sequence[Pid]) -> str:
    told = [f"{process.pid} ({_command(process)})" for process in processes[:NAMED]]
    return ", ".join(told) + (f" and {len(processes) - NAMED} more" if len(processes) > NAMED else "")


def _command(process: Pid) -> str:
    return process_tree.read_proc(process.pid, "cmdline").replace(b"\0", b" ").decode(errors="replace").strip()[:80]
