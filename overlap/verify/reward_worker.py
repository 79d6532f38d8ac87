"""One worker process that calls the user's reward function, seen from the thread that waits for it.

It is started by exec like all processes of a run, and talks over a connection of ``multiprocess``. ``dill`` carries the
task over by value: one that is defined in a notebook or an unguarded script, a lambda and a closure work, and the
caller's ``__main__`` is not run again.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from multiprocess.connection import Pipe, wait

from overlap.core.errors import VerifierError
from overlap.core.user_code import line_of_dump
from overlap.process.child_processes import ChildProcesses
from overlap.process.process_tree import read_proc
from overlap.verify.reward_host import BOOT, WHERE

START_S = 120.0
"""Seconds that a worker has to start and to import what the task needs."""
STRETCH = 3.0
"""A worker that waited for a core gets that time in addition, at most this many times its deadline."""
_END_S = 5.0
"""Seconds that a process may take to end when its connection has."""
_REST_S = 10.0
"""Seconds for the rest of a reply that has begun."""
_WHERE_S = 0.3
"""Seconds that a worker that hangs has to report where."""


class WorkerLost(VerifierError):
    """No reward was returned: its worker did not start, hung or died. The sample is masked.

    ``what``: the user's function did this, and did not come back from an answer; "" where it is not to blame. ``hung``:
    it has not ended at its deadline.
    """

    def __init__(self, text: str, what: str = "", *, hung: bool = False) -> None:
        super().__init__(text)
        self.what, self.hung = what, hung


class RewardWorker:
    """One process, which has one call at a time. It is started at once, works where this process does, and prints to
    ``log`` or else to this process's own output; ``scratch`` is the run's directory, or else the temp folder. All
    methods but ``pids`` and ``kill`` belong to one thread at a time. Raises WorkerLost.
    """

    def __init__(self, log: Path | None, scratch: Path | None) -> None:
        self._killed = False
        self._location = -1
        """Descriptor, there, of the file in which it writes where it hangs."""
        self._processes = ChildProcesses("reward", WorkerLost, scratch or Path(tempfile.gettempdir()), log)
        output = {} if log is not None else {"stdout": None, "stderr": None}
        with self._processes.starting("a reward worker"), contextlib.ExitStack() as undo:
            self._connection, theirs = map(undo.enter_context, Pipe())
            argv, options = ["-P", "-c", BOOT, str(theirs.fileno())], {"cwd": None, "pass_fds": [theirs.fileno()]}
            undo.callback(self.kill)
            self._process = self._processes.popen(argv, {}, options | output)
            self._sentinel = os.pidfd_open(self._process.pid)
            undo.pop_all()
            theirs.close()

    def load(self, payload: bytes) -> str:
        """Have it load the task; returns "", or what is wrong with the task. Raises WorkerLost."""
        until = time.monotonic() + START_S
        if self._replied(START_S) and self._receive():  # it is there, and reads what is sent
            self._send("load", sys.path, payload)
        if not self._replied(until - time.monotonic()):
            raise WorkerLost(f"the reward worker did not start, and load the task, within {START_S:g} s")
        self._location, fault = self._receive()
        return str(fault)

    def call(
        self, prompt: bytes, answer: str, token_ids: Sequence[int] | None, deadline_s: float
    ) -> tuple[float | None, str]:
        """The reward of an answer, and the fault of the reward function, "" for none. ``token_ids``: those of the
        answer, for a task that asks for them.
        """
        tokens = None if token_ids is None else array("q", token_ids)  # of a list, dill writes each by itself
        before_s = _starved_s(self._process.pid)
        self._send("reward", prompt, answer, tokens)
        if not self._replied(deadline_s):
            starved_s = max(map(_starved_s, self.pids()), default=0.0) - before_s
            if not self._replied(min(max(0.0, starved_s), STRETCH * deadline_s)):
                what = f"took more than {deadline_s:g} s of wall time{self._where()}"
                raise WorkerLost(f"the reward function {what}", what, hung=True)
        reward, fault = self._receive()
        return reward, fault

    def pids(self) -> tuple[int, ...]:
        """Pids of the process, and of what it has started, that are alive."""
        return self._processes.pids()

    def kill(self) -> None:
        """End the process with its descendants; the waiting call gets WorkerLost."""
        self._processes.bury()
        self._killed = True

    def close(self) -> None:
        """End it with its descendants, and free what belongs to it."""
        if not self._killed:
            self.kill()
        self._connection.close()
        os.close(self._sentinel)

    def _send(self, *call: Any) -> None:
        with contextlib.suppress(OSError):  # it has ended, which `_receive` says
            self._connection.send(call)

    def _replied(self, seconds: float) -> bool:
        """Wait at most ``seconds`` for a reply or the end of the process; return whether one came."""
        return bool(wait([self._connection, self._sentinel], max(0.0, seconds)))

    def _receive(self) -> Any:
        """The reply that is there. Raises WorkerLost where the process has ended, or the function its connection."""
        if self._connection.poll():
            until, timer = time.monotonic() + _REST_S, threading.Timer(_REST_S, self.kill)
            timer.start()
            try:
                with contextlib.suppress(Exception):  # it has ended, or the function has closed it, or written into it
                    return self._connection.recv()
            finally:
                timer.cancel()
            if time.monotonic() >= until:  # the rest of what the function wrote never came
                raise WorkerLost("the reward worker was cut off", "wrote into the connection of its worker")
        try:
            code = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            raise WorkerLost("the reward worker was cut off", "closed the connection of its worker") from None
        # Without pid or log: failures of samples are counted by their text.
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        text = f"the reward worker died ({how})"
        killed = code == -signal.SIGKILL  # by the machine, perhaps, as memory ran out
        raise WorkerLost(text, "" if killed else f"ended its process ({how})")

    def _where(self) -> str:
        """Return the worker's own report of where it hangs, also in a call that never returns to the interpreter."""
        text, until = "", time.monotonic() + _WHERE_S
        self._process.send_signal(WHERE)
        while time.monotonic() < until and not text.endswith((" in <module>\n", "  ...\n")):
            time.sleep(0.01)
            text = read_proc(self._process.pid, f"fd/{self._location}").decode(errors="replace")
        where = line_of_dump(text)
        return f" in {where}" if where else ""


def _starved_s(pid: int) -> float:
    """Seconds that a process has wanted a core and had none."""
    fields = read_proc(pid, "schedstat").split()
    return int(fields[1]) / 1e9 if len(fields) > 1 else 0.0
