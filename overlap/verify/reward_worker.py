"""One worker process that calls the user's reward function: the driver's end of it, and its own life (``serve``).

Workers are started by exec: dill carries the task over by value, so a task defined in a notebook or in an unguarded
script works, and the caller's ``__main__`` is not run again.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import math
import numbers
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

from overlap.process import RUN, environment, process_tree, run_name
from overlap.verify import traceback_location
from overlap.verify.shared import Dumped, Receiver, Sender
from sandbox.errors import not_started

START_S = 120.0
"""A worker has this long to start and to import what the task needs."""
_WRITE_S = 10.0
"""A worker that has started takes a message within this time."""
KILL_S = 5.0
_TELL_S = 0.3
"""A worker that hangs has this long to say where."""
_TELL: signal.Signals = signal.SIGUSR2


class WorkerLost(Exception):
    """The reward could not be had: its worker did not start, hung or died. The sample is masked."""


class Hung(WorkerLost):
    """The user's function has not ended at its deadline. ``what``: the same without a subject."""

    def __init__(self, what: str) -> None:
        super().__init__(f"the reward function {what}")
        self.what = what


class RewardFault(Exception):
    """The user's reward function raised, or returned something else than a finite number or None."""


def checked(value: object) -> float | None:
    """The reward as a float; raises RewardFault unless it is a finite number or None."""
    if value is None:
        return None
    if not isinstance(value, numbers.Real):
        raise RewardFault(f"returned {shortened(value)} of type {type(value).__name__}; return a float or None")
    if not math.isfinite(number := float(value)):
        raise RewardFault(f"returned {number}; return a finite number, or None to mask the sample")
    return number


def described(error: BaseException) -> str:
    """An exception of the user's code in one line, with the line of theirs where it was raised."""
    where = traceback_location.of_traceback(error.__traceback__)
    return f"raised {type(error).__name__}: {shortened(error, str)}" + (f" ({where})" if where else "")


_BOOT = "import sys; from overlap.verify.reward_worker import serve; serve(int(sys.argv[1]), int(sys.argv[2]))"


class Worker:
    """One process, and our end of its pipe. Used by one thread at a time."""

    def __init__(self, log: Path | None, scratch: Path | None) -> None:
        """Raises WorkerLost when the machine gives no process or no descriptor for it; nothing is left then."""
        try:
            self._start(log, scratch)
        except OSError as error:
            raise WorkerLost(not_started("a reward worker", error)) from error
        self.pid: int = self._process.pid
        self._prompts = Sender()
        self._diary = -1
        """Its descriptor of where it tells that it hangs."""

    def _start(self, log: Path | None, scratch: Path | None) -> None:
        with contextlib.ExitStack() as undo, contextlib.ExitStack() as stack:
            self._pipe, theirs = Pipe()
            undo.callback(self._pipe.close)
            stack.callback(theirs.close)
            out = stack.enter_context(log.open("ab")) if log else None
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, str(theirs.fileno()), str(os.getpid())],
                env=_environment(scratch),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,  # Ctrl-C in the terminal is the driver's to handle
            )
            undo.callback(self._wait, KILL_S)
            undo.callback(self._process.kill)
            self._pidfd = os.pidfd_open(self._process.pid)
            undo.pop_all()

    def load(self, payload: bytes) -> str:
        """Have it load the task; returns "", or what is wrong with the task. Raises WorkerLost."""
        self._bound_writes(START_S)
        answer = self._ask([json.dumps(sys.path).encode(), payload], START_S)
        self._bound_writes(_WRITE_S)
        if answer is None:
            raise WorkerLost(f"the reward worker did not start, and load the task, within {START_S:g} s")
        kind, value = answer
        if kind != "ready":
            return str(value)
        self._diary = value
        return ""

    def call(self, prompt: Dumped, answer: str, deadline_s: float) -> tuple[str, Any]:
        """Have an answer rewarded. Raises WorkerLost, Hung."""
        got = self._ask(self._prompts.messages(prompt, answer), deadline_s)
        if got is None:
            raise Hung(f"took more than {deadline_s:g} s of wall time{self._where()}")
        return got

    def _ask(self, messages: Sequence[bytes], deadline_s: float) -> tuple[str, Any] | None:
        """Send, and wait for the answer; None for none at the deadline. Raises WorkerLost."""
        poller = select.poll()
        poller.register(self._pipe.fileno(), select.POLLIN)
        poller.register(self._pidfd, select.POLLIN)  # its children may hold its end of the pipe open
        try:
            for message in messages:
                self._pipe.send_bytes(message)
            if not poller.poll(deadline_s * 1000):
                return None
            if self._pipe.poll(0):
                kind, value = json.loads(self._pipe.recv_bytes())
                return kind, value
        except (EOFError, OSError):
            pass  # the process is gone or does not read: both are told below
        raise WorkerLost(self._obituary())

    def _where(self) -> str:
        """Where it hangs, as it says itself: also inside of a call that never comes back to the interpreter."""
        path = f"/proc/{self.pid}/fd/{self._diary}"
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(self._pidfd, _TELL)
            text, end = "", time.monotonic() + _TELL_S
            while time.monotonic() < end and not text.endswith((" in <module>\n", "  ...\n")):
                time.sleep(0.01)
                text = Path(path).read_text("utf-8", "replace")
            if where := traceback_location.of_dump(text):
                return f" in {where}"
        return ""

    def end(self) -> None:
        """Kill it with its descendants, and free what belongs to it."""
        process_tree.kill_tree([self.pid], KILL_S, reap=False)
        self._wait(KILL_S)
        self._pipe.close()
        os.close(self._pidfd)

    def _obituary(self) -> str:
        code = self._wait(1.0)
        if code is None:
            return "the reward worker did not take its work"
        return f"the reward worker died ({f'signal {-code}' if code < 0 else f'exit code {code}'})"

    def _wait(self, seconds: float) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        return None

    def _bound_writes(self, seconds: float) -> None:
        """A worker that was stopped would hold up a write larger than the socket's buffer for ever."""
        with socket.socket(fileno=os.dup(self._pipe.fileno())) as end:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(seconds), 0))


def _environment(scratch: Path | None) -> dict[str, str]:
    if scratch is None:
        return environment()
    return environment(TMPDIR=str(scratch.absolute()), **{RUN: run_name(scratch)})


def serve(fd: int, driver: int) -> None:
    """A worker's life: load the task, then answer one call after the other until the driver is gone.

    Answers are JSON: ["ready", descriptor of its diary], ["reward", number or null], ["fault", text].
    """
    process_tree.bind_to_parent(driver)
    with contextlib.suppress(EOFError, ConnectionError):  # the driver is gone, or wants no more
        _serve(Connection(fd))
    process_tree.leave(0)


def _serve(pipe: Connection) -> None:
    sys.path[:] = json.loads(pipe.recv_bytes())
    payload = pipe.recv_bytes()
    import dill  # type: ignore[import-untyped]

    try:
        task = dill.loads(payload)
    except (Exception, SystemExit) as error:  # importing a user's module can raise anything
        _answer(pipe, "fault", described(error))
        return
    prompts = Receiver(dill.loads)
    _answer(pipe, "ready", _keep_diary())
    while True:
        prompt, answer = prompts.receive(pipe)
        try:
            reward = checked(task.reward(prompt(), answer, None))
        except RewardFault as error:
            _answer(pipe, "fault", str(error))
        except (Exception, SystemExit) as error:
            _answer(pipe, "fault", described(error))
        else:
            _answer(pipe, "reward", reward)


def _keep_diary() -> int:
    """On a signal, write down where we are; returns the descriptor of where to. The driver reads it in /proc."""
    diary = os.memfd_create("diary")
    faulthandler.register(_TELL, file=diary, all_threads=False)
    return diary


def _answer(pipe: Connection, kind: str, value: object) -> None:
    sys.stdout.flush()
    pipe.send_bytes(json.dumps([kind, value]).encode())


def shortened(value: object, show: Any = repr) -> str:
    """A value of the user's in one line, whatever its own ``show`` does."""
    try:
        text = " ".join(str(show(value)).split())
    except Exception as error:  # a repr of the user's own
        text = f"<{type(value).__name__} without a text: {type(error).__name__}>"
    return text if len(text) <= 200 else f"{text[:199]}…"
