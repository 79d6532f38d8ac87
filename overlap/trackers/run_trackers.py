"""All trackers of a run, as one more writer of its metrics."""

from __future__ import annotations

import json
import math
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

from overlap.atomic import write_atomic
from overlap.callbacks.events import Evaluated, RunEvent, StepTaken
from overlap.config.fields import Config
from overlap.core import Prompt, Scored
from overlap.errors import ConfigError
from overlap.json_types import to_json_types
from overlap.record.run_exit import RunExit
from overlap.record.run_files import RunFile
from overlap.record.rundir import RunDir
from overlap.record.write_failures import WriteFailures
from overlap.trackers.child_tracker import ChildTracker
from overlap.trackers.feed import TrackerFeed
from overlap.trackers.kinds import FIELD, KINDS, TrackerKind
from overlap.trackers.metric_names import renamed
from overlap.trackers.tracker import TrackedRun, Tracker

START_S = 15.0
"""Time for the trackers to say that they cannot be used, before anything else is started."""
END_S = 30.0
"""Time for all trackers to finish, s."""
PROJECT = "overlap-rl"
SAMPLES_EVERY, SAMPLES, TEXT = 10, 4, 4_000
"""Steps between samples, samples of one step or evaluation, and characters of each text."""


class Trackers:
    """Implements ``record.MetricsWriter``; without feeds it does nothing. Its methods wait for no tracker, except
    ``check_started`` and ``end``.
    """

    name = "trackers"

    def __init__(
        self, feeds: Sequence[TrackerFeed] = (), failures: WriteFailures | None = None, scheme: str = "ours"
    ) -> None:
        """``failures`` are told what is lost; ``scheme``: names of metrics (``run.metric_names``)."""
        self.text_of: Callable[[Prompt], str] = lambda prompt: ""
        self._feeds, self._failures, self._scheme = feeds, failures, scheme
        self._waiting: set[str] = set()
        self._ended = False

    @classmethod
    def open(cls, cfg: Config, run: RunDir, step: int, scratch: Path) -> Trackers:
        """Start the trackers of ``run.trackers`` for a run that goes on after ``step``. ``scratch`` is the run's."""
        told = _tracked_run(cfg, run.path, step)
        feeds = [TrackerFeed(name, partial(_make, KINDS[name], run.log, scratch), told) for name in cfg.run.trackers]
        for feed in feeds:
            feed.put("begin")
        return cls(feeds, run.failures, cfg.run.metric_names)

    def check_started(self) -> None:
        """Wait a little for all trackers to start. Raises ConfigError for one that is refused; one that only takes its
        time is left to it.
        """
        until_s = time.monotonic() + START_S
        for feed in self._feeds:
            feed.started.wait(max(0.0, until_s - time.monotonic()))
            if feed.refused:
                raise ConfigError(FIELD, feed.name, feed.refused)

    def write(self, row: Mapping[str, Any]) -> bool:
        if self._feeds:
            numbers = {name: value for name, value in row.items() if _is_number(value)}
            shown = renamed(numbers, self._scheme)
            self._put("row", shown)
        return False

    def flush(self) -> bool:
        self._report()
        return False

    def rewind(self, step: int) -> None:
        self._put("rewind", step)

    def on_event(self, event: RunEvent) -> None:
        """Send some samples of a step, now and then, and of each evaluation."""
        if isinstance(event, StepTaken) and event.step % SAMPLES_EVERY == 1:
            self._send_samples("train", event.step, event.batch.all_samples)
        elif isinstance(event, Evaluated):
            self._send_samples("heldout", event.step, event.samples)

    def end(self, exit: str, summary: Mapping[str, Any]) -> None:
        """Tell the trackers how the run ended, and wait for them, at most ``END_S`` together. Safe to call twice."""
        if self._ended:
            return
        self._ended = True
        self._put("end", exit, _last_figures(summary))
        until_s = time.monotonic() + END_S
        for feed in self._feeds:
            feed.close(until_s)
        self._report()

    def close(self) -> None:
        """For a run that ended before its first step."""
        self.end(RunExit.NOT_BEGUN.value, {})

    def _put(self, method: str, *args: Any) -> None:
        for feed in self._feeds:
            feed.put(method, *args)
        self._report()

    def _send_samples(self, split: str, step: int, samples: Sequence[Scored]) -> None:
        if self._feeds and samples:
            apart = samples[:: max(1, len(samples) // SAMPLES)]
            self._put("samples", split, step, [self._sample_row(sample) for sample in islice(apart, SAMPLES)])

    def _sample_row(self, sample: Scored) -> dict[str, Any]:
        prompt = sample.trajectory.request.prompt
        return {
            "problem": prompt.id,
            "prompt": self.text_of(prompt)[-TEXT:],
            "answer": sample.trajectory.text[:TEXT],
            "reward": sample.reward,
            "verdict": str(sample.judgement.verdict) if sample.judgement else "",
            "failure": sample.failure[:200],
        }

    def _report(self) -> None:
        """Hand on what the threads have lost."""
        if self._failures is None:
            return
        for feed in self._feeds:
            name = str(RunFile.EVENTS) if feed.name == "tensorboard" else f"tracker {feed.name}"
            for why in feed.take_losses():
                self._failures.add(name, why)
            if feed.waiting and feed.name not in self._waiting:
                self._waiting.add(feed.name)
                self._failures.report_line(f"{name} cannot be reached: {feed.waiting}; it is tried again")
            elif not feed.waiting and feed.name in self._waiting:
                self._waiting.discard(feed.name)
                self._failures.report_line(f"{name} is reached again")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _make(kind: TrackerKind, log: Path, scratch: Path) -> Tracker:
    if kind.child:
        return ChildTracker(kind.path, log, scratch)
    module, _, name = kind.path.partition(":")
    made: Tracker = getattr(import_module(module), name)()
    return made


def _tracked_run(cfg: Config, path: Path, step: int) -> TrackedRun:
    apart = any(KINDS[name].child for name in cfg.run.trackers)
    files = RunFile.TRACKERS.of(path)
    return TrackedRun(
        id=_run_id(files) if apart else "",
        name=path.name,
        project=PROJECT,
        folder=str(path),
        files=str(files),
        config=to_json_types(cfg.to_dict()),
        step=step,
        resumed=step > 0,
    )


def _run_id(files: Path) -> str:
    """The id that a run has at its trackers, the same whenever it is resumed."""
    kept = files / "run.json"
    with suppress(OSError, ValueError, KeyError, TypeError):
        return str(json.loads(kept.read_text(encoding="utf-8"))["id"])
    made = secrets.token_hex(8)
    with suppress(OSError):  # without the file a resumed run begins another curve
        files.mkdir(exist_ok=True)
        write_atomic(kept, json.dumps({"id": made}) + "\n")
    return made


def _last_figures(summary: Mapping[str, Any]) -> dict[str, Any]:
    """What a tracker shows of the end: the evaluations and the rewards, as flat numbers and texts."""
    found: dict[str, Any] = {"exit": summary.get("exit", "")}
    measured = summary.get("pass_at_1") or summary.get("heldout_reward") or {}
    for when in ("before", "after", "change", "best"):
        for name in ("value", "low", "high") if measured.get(when) else ():
            found[f"{when}/{name}"] = measured[when][name]
    for name in ("first", "last"):
        if name in summary.get("reward", {}):
            found[f"reward/{name}"] = summary["reward"][name]
    return {name: value for name, value in found.items() if isinstance(value, str) or _is_number(value)}
