"""``start(cfg)``: a run in a thread of its own, and the commands to it. ``train`` is the same, waited for.

    with overlap.start(cfg) as run:
        run.pause(); run.save(); run.resume()
        print(run.status()["step"])
    figures = run.wait()                                # await asyncio.to_thread(run.wait) in a loop

A program exits only after its runs have ended: it waits for them, or stops them if it exits by an exception. A failed
run whose ``wait`` was never called is reported on stderr.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import math
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from functools import cache, partial
from types import TracebackType
from typing import Any, TextIO

from overlap.config.fields import Config
from overlap.core import Task
from overlap.core.errors import ConfigError, StoppedError, one_line
from overlap.hooks.checks import check_callbacks
from overlap.record.logs import guest
from overlap.record.run_summary import RunSummary
from overlap.run.control import RunControl
from overlap.run.restarts import reason_of
from overlap.run.training import check_run_given, run_training

LOOK_S = 0.5
"""Longest wait before a Ctrl-C is noticed, s."""
BEGIN_S = 5.0
"""A thread that has not begun by then was not started, s."""


class Run(RunControl):
    """A run in progress. The end of its ``with`` block waits for it, and raises its error if ``wait`` has not; a block
    that is left by an exception stops it in order.
    """

    def __init__(self, cfg: Config, train: Callable[..., RunSummary]) -> None:
        """``train`` gets this as its ``control``."""
        super().__init__()
        self.expect(cfg.run.dir, cfg.run.steps)
        self._ended: Future[RunSummary] = Future()
        self._begun = threading.Event()
        self._seen = False
        self._name = cfg.run.dir

        def work() -> None:
            self._begun.set()
            try:
                figures = train(control=self)
                self.end(exit=figures["exit"])
                self._ended.set_result(figures)
            except BaseException as error:  # it is raised where a caller waits
                self.end(exit=reason_of(error))
                self._ended.set_exception(error)

        _hook()  # first: a program must not exit before the run, which could start no thread after that
        _RUNS.add(self)
        try:
            threading.Thread(target=work, name="overlap-run").start()
        except BaseException:  # a Ctrl-C, and the thread may be there all the same
            self.stop()
            raise

    def __repr__(self) -> str:
        said = self._session_status()
        ended = f" ({said['exit']})" if "exit" in said else ""
        return f"<overlap.Run {said['run']}: {self.state}{ended}, step {said['step']} of {said['steps']}>"

    @property
    def done(self) -> bool:
        """True when the run has ended."""
        return self._ended.done()

    def wait(self, timeout: float | None = None) -> RunSummary:
        """Wait until the run has ended; returns its summary. Raises what ``train`` raises, or TimeoutError after
        ``timeout`` seconds. A Ctrl-C here stops the run, and is raised when the run has ended, or at the next Ctrl-C.
        """
        if timeout is not None and not isinstance(timeout, int | float):
            raise ConfigError("timeout", timeout, "use a number of seconds, or None to wait for the end")
        try:
            self._await_end(timeout)
        except KeyboardInterrupt:
            self._stop_and_wait()
            raise
        if not self.done:
            raise TimeoutError(f"the run has not ended within {timeout:g} s")
        self._seen = True
        _RUNS.discard(self)
        return self._ended.result()

    def _await_end(self, timeout: float | None = None) -> None:
        """Wait a little at a time: a Ctrl-C at the moment when a wait begins is noticed only after that wait."""
        until = math.inf if timeout is None else time.monotonic() + timeout
        while not self.done and (left := until - time.monotonic()) > 0:
            wait([self._ended], min(LOOK_S, left))

    @property
    def _stopped(self) -> bool:
        return isinstance(self._ended.exception(), StoppedError)

    def _stop_and_wait(self) -> None:
        self.stop()
        self._await_end()
        self._seen = self._seen or self._stopped

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._stop_and_wait()
        elif not self._seen:
            self.wait()

    def _outlive(self) -> None:
        """At the exit of the program: wait for the run, and report a failure that ``wait`` has not raised."""
        if not self._begun.wait(BEGIN_S):
            return
        self._await_end()
        error = self._ended.exception()
        if error is not None and not (self._seen or self._stopped):
            self._seen = True
            line = one_line(f"{type(error).__name__}: {error}")
            with contextlib.suppress(OSError, ValueError, AttributeError):  # the terminal has gone
                print(f"overlap: the run in {self._name} failed: {line}", file=sys.stderr)


_RUNS: set[Run] = set()


@cache
def _hook() -> None:
    importlib.import_module("concurrent.futures.thread")  # closes its threads behind hooks that are younger
    getattr(threading, "_register_atexit", atexit.register)(_outlive_all)


def _outlive_all() -> None:
    runs, failed = [*_RUNS], getattr(sys, "last_type", None) is not None
    try:
        _end(runs, stop=failed)
    except KeyboardInterrupt:
        _end(runs, stop=True)


def _end(runs: list[Run], *, stop: bool) -> None:
    for run in runs if stop else ():
        run.stop()
    for run in runs:
        run._outlive()


def start(
    cfg: Config,
    task: Task | None = None,
    *,
    resume: bool = False,
    with_changes: bool = False,
    console: TextIO | None = None,
    callbacks: Sequence[Any] = (),
) -> Run:
    """Start training in a thread and return immediately; see :func:`overlap.train` for the arguments. ``Run.wait``
    raises bad input; arguments of a wrong type are refused at once (ConfigError).

    The lines of the run go to ``console`` (``sys.stderr``) if one is given, and in any case to ``run.log``. Everything
    else that this process prints or logs stays where it goes. Signals are left to the caller: ``Run.wait`` turns a
    Ctrl-C into ``stop``.
    """
    check_run_given(cfg, resume)
    if console is not None and not hasattr(console, "write"):
        raise ConfigError("console", console, "give a stream such as sys.stderr, or an open text file, or None")
    options: dict[str, Any] = {"resume": resume, "with_changes": with_changes, "output": partial(guest, stream=console)}
    return Run(cfg, partial(run_training, cfg, task, **options, callbacks=check_callbacks(callbacks)))
