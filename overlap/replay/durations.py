"""Reads from a run directory how long each part took, for ``simulate``.

RUN/trace.json ──▶ generation, verification and reward of each sample; learning, load and parity of each step

A sample's generation counts from the moment the engine had room for it, without the loads of weights during which the
engine paused, and where it shared devices with the learner without the steps of that: this is what the sample would
take in another schedule, as long as each part has resources of its own. Where parts shared cores, their durations
include how much they slowed each other.
"""

from __future__ import annotations

import bisect
import heapq
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from overlap.config.fields import Config
from overlap.config.load import last_override, load_config, without_override
from overlap.errors import ConfigError, one_line
from overlap.record.metrics import read_steps
from overlap.record.ownership import find_run_file
from overlap.record.run_files import RunFile

Span = tuple[float, float]
_WORKERS = "verify.workers"
_TURNS = "memory/engine_asleep_free_gib"  # only where an engine sleeps for the learner


@dataclass(frozen=True, slots=True)
class SampleTimes:
    """How long one sample took, s, and its result."""

    generate_s: float
    verify_s: float = 0.0
    reward: float | None = None
    tokens: int = 1
    finish: str = "stop"


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """The durations of a run. ``learned`` is by step: seconds, without what ``drain`` waited for, and the groups that
    were learned from. ``cfg`` has the steps that were taken, not those that the run was asked for.
    """

    cfg: Config
    groups: Mapping[int, Mapping[int, SampleTimes]]
    learned: Mapping[int, tuple[float, int]]
    loads: Mapping[int, float]
    """By version: publish to loaded, s; what ``drain`` waited for is no part of it."""
    parities: Mapping[int, float]
    rows: Sequence[Mapping[str, float | None]] = ()
    turns: bool = False
    """Engine and learner shared devices, and took turns."""


@dataclass(slots=True)
class _Spans:
    """The events of a trace, by what they are; seconds."""

    generate: dict[tuple[int, int], tuple[Span, dict[str, Any]]] = field(default_factory=dict)
    verify: dict[tuple[int, int], tuple[Span, dict[str, Any]]] = field(default_factory=dict)
    learn: dict[int, tuple[Span, int]] = field(default_factory=dict)
    load: dict[int, Span] = field(default_factory=dict)
    parity: dict[int, Span] = field(default_factory=dict)


def config_of_run(run: str, overrides: Sequence[str] = ()) -> Config:
    """The configuration of a run directory, with overrides. What it simulates needs no cores: ``verify.workers`` may
    be more than this machine has. Raises ConfigError.
    """
    path = _file(run, RunFile.CONFIG)
    stored = load_config(path, [f"{_WORKERS}=1"])  # whatever it asked of its machine
    given = last_override(overrides, _WORKERS)
    if given is None:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
        given = str((tree.get("verify") or {}).get("workers", stored.verify.workers))
    asked = given.strip()
    if not asked.isdecimal() or int(asked) < 1:
        raise ConfigError(_WORKERS, asked, "use a whole number, 1 or more")
    cfg = load_config(path, [*without_override(overrides, _WORKERS), f"{_WORKERS}=1"])
    object.__setattr__(cfg.verify, "workers", int(asked))
    return cfg


def read_recorded_run(run: str) -> RecordedRun:
    """Read what the run in the directory ``run`` took. Raises ConfigError where that is no run, or has no step."""
    trace = _file(run, RunFile.TRACE)
    try:
        rows = [_numbers(row) for row in read_steps(_file(run, RunFile.METRICS))]
    except (OSError, AttributeError, TypeError, ValueError) as exc:
        raise ConfigError("RUN", run, f"its metrics.jsonl cannot be read ({exc}); name another run") from exc
    try:
        spans = _sorted_out(json.loads(trace.read_text(encoding="utf-8")))
    except (OSError, KeyError, TypeError, AttributeError, ValueError, RecursionError) as exc:
        reason = one_line(f"{type(exc).__name__}: {exc}", 120)
        raise ConfigError("RUN", run, f"its trace.json is no trace of a run ({reason}); name another run") from exc
    if not (rows and spans.generate and spans.learn and spans.load):
        raise ConfigError("RUN", run, "holds no step that was learned; name a run that has taken some")
    cfg = config_of_run(run, [f"run.steps={len(rows)}"])
    turns = any(_TURNS in row for row in rows)
    ends = sorted(end for (_, end), _ in spans.generate.values()) if cfg.rollout.in_flight == "drain" else []
    loads = {version: _drained(span, ends) for version, span in spans.load.items()}
    learned = {n: (_drained(span, ends if turns else []), groups) for n, (span, groups) in spans.learn.items()}
    stood = [*loads.values(), *(span for span, _ in learned.values() if turns)]
    return RecordedRun(
        cfg,
        _samples(spans, cfg, sorted(stood)),
        {step: (end - start, groups) for step, ((start, end), groups) in learned.items()},
        {version: end - start for version, (start, end) in loads.items()},
        {version: end - start for version, (start, end) in spans.parity.items()},
        rows,
        turns,
    )


def _file(run: str, file: RunFile) -> Path:
    return find_run_file(run, file, field="RUN", way_out="name the directory of a run that has taken a step")


def _numbers(row: Mapping[str, Any]) -> dict[str, float | None]:
    return {name: value for name, value in row.items() if value is None or isinstance(value, int | float)}


def _sorted_out(events: list[dict[str, Any]]) -> _Spans:
    found = _Spans()
    for event in events:
        if event["ph"] != "X":
            continue
        name, args = str(event["name"]), event["args"]
        start, duration = float(event["ts"]) / 1e6, float(event["dur"]) / 1e6
        if not (math.isfinite(start) and math.isfinite(duration) and duration >= 0):
            raise ValueError(f"{name!r} has no time")
        span = (start, start + duration)
        match event["cat"]:
            case "generate" | "verify" as stage:
                getattr(found, stage)[_place(name)] = (span, dict(args))
            case "learn":
                found.learn[_number(name)] = (span, max(1, int(args["groups"])))
            case "load":
                (found.parity if name.startswith("parity") else found.load)[_number(name)] = span
    return found


def _place(name: str) -> tuple[int, int]:
    match = re.fullmatch(r"g(\d+)s(\d+)", name)
    if match is None:
        raise ValueError(f"{name!r} names no sample")
    return int(match[1]), int(match[2])


def _number(name: str) -> int:
    """Of "step 3", "version 3", "parity of version 3"."""
    return int(name.rpartition(" ")[2])


def _drained(span: Span, ends: Sequence[float]) -> Span:
    """A load, or a step for which the engine slept, without the wait for the last of the responses that ended in it;
    ``ends`` are of all responses, in order.
    """
    start, end = span
    last = bisect.bisect_left(ends, end) - 1
    return max(start, ends[last]) if last >= 0 else start, end


def _samples(spans: _Spans, cfg: Config, loads: Sequence[Span]) -> dict[int, dict[int, SampleTimes]]:
    begun = decoding_since({place: span for place, (span, _) in spans.generate.items()}, cfg.rollout.sequences)
    held = held_s({place: span for place, (span, _) in spans.verify.items()}, cfg.verify.workers)
    groups: dict[int, dict[int, SampleTimes]] = {}
    for place, ((_, end), args) in spans.generate.items():
        generate_s = end - begun[place] - _within(loads, (begun[place], end))
        _, verdict = spans.verify.get(place, (None, {}))
        groups.setdefault(place[0], {})[place[1]] = SampleTimes(
            max(0.0, generate_s),
            held.get(place, 0.0),
            None if verdict.get("reward") is None else float(verdict["reward"]),
            max(1, int(args["tokens"])),
            str(args["finish"]),
        )
    return groups


def decoding_since(spans: Mapping[tuple[int, int], Span], sequences: int) -> dict[tuple[int, int], float]:
    """When the engine had room for each sample (group, sample), s: it decodes ``sequences`` at once, those of the
    oldest group first.
    """
    events = sorted([(end, 0, place) for place, (_, end) in spans.items()])
    events = list(heapq.merge(events, sorted((start, 1, place) for place, (start, _) in spans.items())))
    waiting, since, room = list[tuple[int, int]](), dict[tuple[int, int], float](), sequences
    for at, began, place in events:
        if began:
            heapq.heappush(waiting, place)
        elif place in since:
            room += 1
        else:  # the engine took it before older ones, or its end is its beginning
            since[place] = spans[place][0]
        while room > 0 and waiting:
            first = heapq.heappop(waiting)
            if first not in since:
                since[first] = at
                room -= 1
    return since


def held_s(spans: Mapping[tuple[int, int], Span], workers: int) -> dict[tuple[int, int], float]:
    """Seconds for which each sample (group, sample) held a verifier. Where more were judged at once than there are, as
    equal programs that share one judgement, each held its part of one.
    """
    changes = [(start, 1) for start, _ in spans.values()] + [(end, -1) for _, end in spans.values()]
    held, at, count = {}, 0.0, 0
    clock = 0.0
    for time, change in sorted(changes):
        clock += (time - at) * min(1.0, workers / count) if count else 0.0
        held[time], at, count = clock, time, count + change
    return {place: held[end] - held[start] for place, (start, end) in spans.items()}


def _within(loads: Sequence[Span], span: Span) -> float:
    """Seconds of a span that lie in loads, which are in order and apart from each other."""
    seconds, index = 0.0, bisect.bisect_left(loads, (span[0], span[0]))
    for start, end in loads[max(0, index - 1) :]:
        if start >= span[1]:
            break
        seconds += max(0.0, min(end, span[1]) - max(start, span[0]))
    return seconds
