"""An agent program under a subreaper: its exit, the end of its stderr, and the end of all processes that it started."""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from overlap.core.aio import race, shielded_thread
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


async def run_agent(
    argv: Sequence[str], folder: Path, own: Mapping[str, str], over: asyncio.Event, grace_s: float
) -> tuple[int, str]:
    """Run ``argv`` in ``folder``, with ``own`` variables, in a session of its own, to its end; it is killed ``grace_s``
    after ``over``. Returns its exit status (more than 128: a signal) and the end of what it wrote to stderr.

    However this ends, no process of the program is left: of those below its subreaper and, if that was killed, of those
    with its mark. Raises RolloutError where processes restart themselves faster than they can be ended, OSError.
    """
    mark = secrets.token_hex(8)
    stderr, threads = StderrTail(), ThreadPoolExecutor(1, "agent")
    try:
        process = _started(argv, folder, child_environment(**own, **{LIFE: mark}), stderr)
        running = asyncio.get_running_loop().run_in_executor(threads, process.wait)
        try:
            await race(running, over.wait())
            await race(running, asyncio.sleep(grace_s))
        finally:
            stderr.listen()
            await shielded_thread(_kill, process, mark)
        code = await running
    finally:
        stderr.close()
        threads.shutdown(wait=False)
    return code if code >= 0 else 128 - code, stderr.text


def _started(argv: Sequence[str], folder: Path, known: dict[str, str], stderr: StderrTail) -> subprocess.Popen[bytes]:
    for name in (PARENT, "PYTHONPATH"):  # its imports are not ours
        known.pop(name, None)
    try:
        return subprocess.Popen(
            subreaper.subreaper_command(argv),
            cwd=folder,
            env=known,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr.target,
            start_new_session=True,
        )
    finally:
        stderr.close_target()


def _kill(process: subprocess.Popen[bytes], mark: str) -> None:
    if process.poll() is None:
        process_tree.kill_tree([process.pid], KILL_S, reap=False, trackers=True)
    until = time.monotonic() + END_S
    while left := process_tree.marked(f"{LIFE}={mark}"):
        if time.monotonic() > until:
            raise RolloutError(
                f"episode.command: processes that it started still run after {END_S:g} s of SIGKILL: {_named(left)}"
            )
        process_tree.kill_tree(left, KILL_S, reap=False, trackers=True)


def _named(processes: Sequence[Pid]) -> str:
    told = [f"{process.pid} ({_command(process)})" for process in processes[:NAMED]]
    return ", ".join(told) + (f" and {len(processes) - NAMED} more" if len(processes) > NAMED else "")


def _command(process: Pid) -> str:
    return process_tree.read_proc(process.pid, "cmdline").replace(b"\0", b" ").decode(errors="replace").strip()[:80]
