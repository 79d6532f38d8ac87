"""Trackers show a run elsewhere: callbacks, each in a thread of its own, that no step waits for.

    RunEvents.tell ──▶ queue of 1,000 events ──▶ thread: on_run_start, on_evaluate, on_step, ..., on_run_end

A call that raises is lost and counted, as is an event that finds the queue full. One that hangs costs its thread, a
daemon.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from typing import Any

from overlap.core.errors import one_line
from overlap.hooks.callback import CallbackRun, Evaluated, RunEvent, StepTaken
from overlap.hooks.thread import Asked, CallbackThread
from overlap.record.run_files import RunFile
from overlap.record.rundir import WriteFailures

QUEUE = 1_000
"""Events that wait for a tracker; one has some 100 numbers."""
END_S, INTERRUPTED_S = 30.0, 3.0
"""Time for all trackers to finish, and after Ctrl-C, s."""
SAMPLES_EVERY, SAMPLES, TEXT = 10, 4, 4_000
"""Steps between samples, samples of one step or evaluation, and characters of each text."""


@dataclass(frozen=True)
class _Feed:
    name: str
    thread: CallbackThread
    calls: deque[Future[Asked]] = field(default_factory=deque)
    """Calls whose outcome is not known, the oldest first."""


class Trackers:
    """The trackers of a run by name. Only ``close`` waits for them. ``failures`` get what is lost."""

    def __init__(self, trackers: Mapping[str, Any], run: CallbackRun, failures: WriteFailures) -> None:
        threads = {name: CallbackThread([tracker], run, lambda line: None) for name, tracker in trackers.items()}
        names = {"tensorboard": str(RunFile.EVENTS)}
        self._feeds = [_Feed(names.get(name, f"tracker {name}"), thread) for name, thread in threads.items()]
        self._failures = failures

    def put(self, event: RunEvent) -> None:
        """Have the trackers called with what they need of ``event``: finite numbers, each once, and a few samples."""
        for feed in self._feeds:
            self._report(feed)
            if len(feed.calls) < QUEUE:
                feed.calls.append(feed.thread.send(_thinned(event)))
            else:
                self._failures.add(feed.name, f"it has not taken {QUEUE} events before")

    def close(self, *, interrupted: bool = False) -> None:
        """Wait until all events have arrived, at most ``END_S``; what has not arrived then is lost."""
        limit_s = INTERRUPTED_S if interrupted else END_S
        wait([call for feed in self._feeds for call in feed.calls], limit_s)
        for feed in self._feeds:
            self._report(feed)
            for call in feed.calls:
                call.cancel()
                self._failures.add(feed.name, f"it did not finish within {limit_s:g} s")
            feed.thread.close()

    def _report(self, feed: _Feed) -> None:
        while feed.calls and feed.calls[0].done():
            if (error := feed.calls.popleft().exception()) is not None:
                self._failures.add(feed.name, one_line(error, 300))


def _thinned(event: RunEvent) -> RunEvent:
    if isinstance(event, StepTaken):
        groups = event.batch.groups[:1] if event.step % SAMPLES_EVERY == 1 else ()
        row = {name: value for name, value in event.row.items() if not name.startswith("eval/")}
        return replace(event, row=_numbers(row), batch=replace(event.batch, groups=groups, dropped=()))
    if isinstance(event, Evaluated):
        apart = event.samples[:: max(1, len(event.samples) // SAMPLES)]
        return replace(event, row=_numbers(event.row), samples=apart[:SAMPLES])
    return event


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers of a row, without the step."""
    numbers = {name: value for name, value in row.items() if isinstance(value, int | float) and name != "step"}
    return {name: value for name, value in numbers.items() if math.isfinite(value)}


def split_shown(event: StepTaken | Evaluated) -> str:
    """The split whose samples an event has."""
    return "heldout" if isinstance(event, Evaluated) else "train"


def sample_rows(run: CallbackRun, event: StepTaken | Evaluated) -> list[dict[str, Any]]:
    """The samples of an event as rows of a table, at most four, long texts shortened."""
    samples = event.samples if isinstance(event, Evaluated) else event.batch.samples
    return [
        {
            "problem": sample.trajectory.request.prompt.id,
            "prompt": run.text_of(sample.trajectory.request.prompt)[-TEXT:],
            "answer": sample.trajectory.text[:TEXT],
            "reward": sample.reward,
            "verdict": str(sample.judgement.verdict) if sample.judgement else "",
            "failure": sample.failure[:200],
        }
        for sample in samples[:SAMPLES]
    ]
