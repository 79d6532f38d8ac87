"""A tracker in a thread of its own, fed through a bounded queue: whatever it does, nobody waits for it.

    put ──▶ queue of 1,000 calls ──▶ thread: start, row, samples, ..., end

A tracker that cannot be started is tried again while its queue fills; a call that raises is lost; what finds the queue
full is dropped. All of it is counted.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from overlap.errors import error_reason, one_line
from overlap.trackers.tracker import TrackedRun, Tracker, TrackerFault, TrackerRefused

QUEUE = 1_000
"""Calls that wait for a tracker; a row has some 100 numbers."""
RETRY_S = 30.0
"""Until a tracker that could not be started is tried again, s."""
RESTARTS = 3
"""How often a tracker that broke off in the middle is started again."""


class TrackerGone(Exception):
    """The tracker's process has died or hangs; it may be started again."""


class TrackerFeed:
    """One tracker of a run. ``make`` makes it; its thread starts at once."""

    def __init__(self, name: str, make: Callable[[], Tracker], run: TrackedRun) -> None:
        self.name = name
        self.refused = ""
        """Why the tracker cannot be used at all."""
        self.waiting = ""
        """Why it could not be started so far; nothing is lost yet."""
        self.started = threading.Event()
        """Set when it was started, or refused, or could not be started at the first try."""
        self._make, self._run = make, run
        self._calls: queue.Queue[tuple[str, tuple[Any, ...]] | None] = queue.Queue(QUEUE)
        self._lost: list[str] = []
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._tracker: Tracker | None = None
        self._starts = 0
        self._thread = threading.Thread(target=self._serve, name=f"overlap-tracker-{name}", daemon=True)
        self._thread.start()

    def put(self, method: str, *args: Any) -> None:
        """Have the tracker's ``method`` called; returns at once."""
        try:
            self._calls.put_nowait((method, args))
        except queue.Full:
            self._lose(self.waiting or f"it has not taken {QUEUE} calls before")

    def take_losses(self) -> list[str]:
        """Why each call was lost since this was asked last."""
        with self._lock:
            lost, self._lost = self._lost, []
        return lost

    def close(self, until_s: float) -> None:
        """Wait for what is in the queue, until ``until_s`` of the monotonic clock; what has not gone out then is lost.
        Safe to call twice.
        """
        if self._closing.is_set():
            return
        self._closing.set()
        with suppress(queue.Full):  # it stands still: its thread is left behind
            self._calls.put(None, timeout=max(0.0, until_s - time.monotonic()))
        self._thread.join(max(0.0, until_s - time.monotonic()))
        if self._thread.is_alive():
            self._abandon()

    def _abandon(self) -> None:
        why = self.waiting or "it did not finish in time"
        while True:
            try:
                if self._calls.get_nowait() is not None:
                    self._lose(why)
            except queue.Empty:
                break
        self._lose(why)  # the call that hangs
        if (kill := getattr(self._tracker, "kill", None)) is not None:
            kill()

    def _lose(self, why: str) -> None:
        with self._lock:
            self._lost.append(one_line(why, 200))

    # --- in the thread --------------------------------------------------------------------------------------

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            self._do(*call)
        if (kill := getattr(self._tracker, "kill", None)) is not None:
            kill()

    def _do(self, method: str, args: tuple[Any, ...]) -> None:
        tracker = self._running()
        if method == "begin":  # being started is all that it asks for
            return
        if tracker is None:
            self._lose(self.refused or self.waiting or "it broke off too often")
            return
        try:
            getattr(tracker, method)(*args)
        except TrackerGone as error:
            self._tracker = None
            self._lose(str(error))
        except Exception as error:  # a tracker can raise anything, and none of it ends a run
            self._lose(_reason(error))

    def _running(self) -> Tracker | None:
        """The tracker, started; None where it cannot be."""
        while self._tracker is None and not self.refused and self._starts <= RESTARTS:
            tracker = self._make()
            self._tracker = tracker
            try:
                tracker.start(self._run)
            except TrackerRefused as error:
                self.refused, self._tracker = one_line(error, 300), None
            except Exception as error:  # the network, mostly
                self.waiting, self._tracker = _reason(error), None
                self.started.set()
                if self._closing.wait(RETRY_S):
                    return None
                continue
            else:
                self.waiting = ""
                self._starts += 1
            self.started.set()
        return self._tracker


def _reason(error: Exception) -> str:
    """What is told of an error of a tracker."""
    cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
    if isinstance(cause, OSError) or isinstance(error, TrackerFault | TrackerGone):
        return error_reason(cause)
    return one_line(f"{type(error).__name__}: {error}", 200)
