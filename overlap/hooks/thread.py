"""The thread that callbacks run in: one event at a time, each callback in the order in which they were given.

A callback that is slow holds up the next step and nothing else: generation and verification go on in the run's own
event loop. One that never returns ends the run after ``run.stall_s``, and is left behind: the thread is a daemon.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from time import monotonic
from typing import Any

from overlap.core import described_error
from overlap.core.errors import CallbackError
from overlap.hooks.callback import METHOD_OF, METHODS, Action, Callback, CallbackRun, RunEvent, actions_of
from overlap.record.run_summary import CallbackCost

SLOW_S = 1.0
"""A call that takes longer is reported, once per method of a callback."""
END_S = 30.0
"""Time for all callbacks to take the end of the run, s."""

Asked = list[tuple[str, Action]]
"""Actions, each behind the name of the method that asked for it."""


@dataclass(slots=True)
class _Hook:
    """A callback with the methods that it has of its own."""

    name: str
    methods: dict[str, Callable[[CallbackRun, RunEvent], Any]]
    calls: int = 0
    seconds: float = 0.0


class CallbackThread:
    """Calls callbacks. Its methods are for the run's event loop, and after it has ended for the run's thread."""

    def __init__(self, callbacks: Sequence[Any], run: CallbackRun, report_line: Callable[[str], None]) -> None:
        """``callbacks``: the ones that ``check_callbacks`` returned; ``report_line`` gets lines for a person."""
        self._hooks = _hooks(callbacks)
        self._run, self._report_line = run, report_line
        self._work: queue.SimpleQueue[tuple[RunEvent, Future[Asked]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._now = ""
        """Name of the method that is being called."""
        self._reported: set[str] = set()

    @property
    def figures(self) -> dict[str, CallbackCost]:
        """Calls and seconds of each callback."""
        return {hook.name: {"calls": hook.calls, "seconds": round(hook.seconds, 3)} for hook in self._hooks}

    def send(self, event: RunEvent) -> Future[Asked]:
        """Have all callbacks called, behind the events before; returns at once. The answer may be a CallbackError."""
        answer: Future[Asked] = Future()
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="overlap-callbacks", daemon=True)
            self._thread.start()
        self._work.put((event, answer))
        return answer

    async def call(self, event: RunEvent) -> Asked:
        """Tell all callbacks; returns what they ask for. Raises CallbackError."""
        if not self._listens(event):
            return []
        asked, stall_s = asyncio.wrap_future(self.send(event)), self._run.cfg.run.stall_s
        try:
            done, _ = await asyncio.wait([asked], timeout=stall_s)
        finally:
            asked.cancel()  # no effect on one that is done
        if not done:
            raise CallbackError(f"callback {self._now} has not returned within run.stall_s={stall_s:g} s")
        return asked.result()

    def call_at_end(self, event: RunEvent) -> CallbackError | None:
        """Tell all callbacks that the run is over, within a bound; returns the error of one."""
        if not self._listens(event):
            return None
        asked = self.send(event)
        done, _ = wait([asked], END_S)
        asked.cancel()  # no effect on one that is done
        late = f"callback {self._now} has not returned: {METHOD_OF[type(event)]} is given up after {END_S:g} s"
        error = asked.exception() if done else CallbackError(late)
        if not isinstance(error, CallbackError):
            return None
        self._report_line(str(error))
        return error

    def close(self) -> None:
        """End the thread once its callback returns; waits for nothing. Safe to call twice."""
        self._work.put(None)

    def _listens(self, event: RunEvent) -> bool:
        return any(METHOD_OF[type(event)] in hook.methods for hook in self._hooks)

    # --- in the thread --------------------------------------------------------------------------------------

    def _serve(self) -> None:
        with asyncio.Runner() as runner:
            while (work := self._work.get()) is not None:
                event, answer = work
                if not answer.set_running_or_notify_cancel():
                    continue
                try:
                    answer.set_result(self._tell(event, runner))
                except CallbackError as error:
                    answer.set_exception(error)

    def _tell(self, event: RunEvent, runner: asyncio.Runner) -> Asked:
        name, asked = METHOD_OF[type(event)], Asked()
        for hook in self._hooks:
            if (method := hook.methods.get(name)) is None:
                continue
            called = self._now = f"{hook.name}.{name}"
            began, process = monotonic(), os.getpid()
            try:
                returned = method(self._run, event)
                if inspect.iscoroutine(returned):
                    returned = runner.run(returned)
            except BaseException as error:  # whatever the user's code raises; SystemExit must not end the thread
                raise CallbackError(f"callback {called} {described_error(error)}{_at(event)}") from error
            finally:
                if os.getpid() != process:  # a child that the callback forked: this thread alone
                    os._exit(1)
                self._count(hook, called, monotonic() - began, event)
            try:
                asked += [(called, action) for action in actions_of(returned)]
            except TypeError as error:
                raise CallbackError(f"callback {called}: {error}{_at(event)}") from error
        return asked

    def _count(self, hook: _Hook, called: str, seconds: float, event: RunEvent) -> None:
        hook.calls += 1
        hook.seconds += seconds
        if seconds > SLOW_S and called not in self._reported:
            self._reported.add(called)
            self._report_line(f"callback {called} took {seconds:.1f} s{_at(event)}: no step is learned meanwhile")


def _at(event: RunEvent) -> str:
    return f", after step {event.step}" if event.step else ", before the first step"


def _hooks(callbacks: Sequence[Any]) -> list[_Hook]:
    """Each callback by its class's name, numbered where two have the same."""
    names = [type(callback).__name__ for callback in callbacks]
    numbered = [
        f"{name}#{names[:k].count(name) + 1}" if names.count(name) > 1 else name for k, name in enumerate(names)
    ]
    return [_Hook(name, _methods(callback)) for name, callback in zip(numbered, callbacks, strict=True)]


def _methods(callback: Any) -> dict[str, Callable[[CallbackRun, RunEvent], Any]]:
    own = [name for name in METHODS if hasattr(callback, name)]
    return {n: getattr(callback, n) for n in own if getattr(type(callback), n, None) is not getattr(Callback, n)}
