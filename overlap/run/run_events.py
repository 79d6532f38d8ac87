"""Tells callbacks and trackers what happens in a run, and does what callbacks ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from overlap.core.errors import CallbackError, StoppedError
from overlap.hooks.callback import (
    Action,
    CheckpointSaved,
    Evaluate,
    Evaluated,
    RunEnded,
    RunEvent,
    RunFailed,
    RunStarted,
    Save,
    Stop,
)
from overlap.hooks.thread import CallbackThread
from overlap.hooks.trackers import Trackers
from overlap.pipeline.control import Control
from overlap.record.run_summary import RunExit


@dataclass
class RunEvents:
    """Belongs to the session. ``no_evaluation`` says why the run cannot evaluate; "" where it can."""

    callbacks: CallbackThread
    trackers: Trackers
    control: Control
    report_line: Callable[[str], None]
    no_evaluation: str = ""
    begun: bool = False
    """True when callbacks know of the run."""
    _told: bool = False

    async def tell(self, event: RunEvent) -> bool:
        """Tell all of ``event``. Returns whether a callback asks for an evaluation now. Raises CallbackError."""
        self.begun = self.begun or isinstance(event, RunStarted)
        self.trackers.put(event)
        wanted = [self._obey(by, action, event) for by, action in await self.callbacks.call(event)]
        return any(wanted)

    def _obey(self, by: str, action: Action, event: RunEvent) -> bool:
        match action:
            case Stop(reason):
                self.control.end(by + (f": {reason}" if reason else ""))
            case Save() if not isinstance(event, CheckpointSaved):  # that checkpoint is of this step
                self.control.save()
            case Evaluate() if self.no_evaluation and not self._told:
                self._told = True
                self.report_line(f"Evaluate of {by} has no effect: {self.no_evaluation}")
            case Evaluate():
                return not isinstance(event, Evaluated)
        return False

    def tell_end(self, step: int, reason: str, summary: Mapping[str, Any], error: BaseException | None) -> None:
        """Tell all that the run has ended, and end the trackers within a bound. Raises CallbackError, unless the run
        has an ``error`` of its own.
        """
        faults = list[CallbackError | None]()
        if self.begun:
            if isinstance(error, Exception) and not isinstance(error, StoppedError) and reason != RunExit.INTERRUPTED:
                faults.append(self.callbacks.call_at_end(RunFailed(step, error)))
            faults.append(self.callbacks.call_at_end(ended := RunEnded(step, reason, summary)))
            self.trackers.put(ended)
        self.callbacks.close()
        self.trackers.close(interrupted=reason == RunExit.INTERRUPTED)
        for fault in faults:
            if fault is not None and error is None:
                raise fault
