"""The load of the fakes, and the arms, best schedules and table of ``schedules.py`` and ``schedules_real.py``."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from overlap.config import Config, load_config
from overlap.pipeline import overlapped, serial

GENERATE_S, REWARD_S = 180.0, 140.0
GROUPS, SAMPLES, WORKERS = 16, 8, 8
VERIFY_S = REWARD_S * WORKERS / (GROUPS * SAMPLES)
"""Mean seconds of a verification, so that a step keeps ``WORKERS`` busy for ``REWARD_S``."""
Landing = Literal["keep", "recompute", "drain"]


def long_tail(rng: random.Random) -> float:
    """Return seconds of generation: log-normal lengths, cut at the longest response."""
    return min(GENERATE_S, GENERATE_S * 0.22 * math.exp(0.75 * rng.gauss(0.0, 1.0)))


def verify_time(rng: random.Random) -> float:
    """Return seconds of verification, ``VERIFY_S`` in the mean."""
    return VERIFY_S * (0.5 + rng.random())


def fake_config(steps: int, *more: str, groups: int = GROUPS, samples: int = SAMPLES) -> Config:
    """Return the configuration of a run on the fakes and a virtual clock; ``more`` are further settings."""
    shape = [f"rollout.groups_per_step={groups}", f"rollout.samples_per_group={samples}", f"run.steps={steps}"]
    return load_config(None, [*shape, "run.stall_s=100000", *more])


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to run the loop, with so many verifiers."""

    name: str
    loop: Callable[..., Any]
    workers: int
    staleness: int = 0
    landing: Landing = "recompute"


@dataclass(frozen=True, slots=True)
class Stages:
    """Seconds that a step takes of each part, whatever the others do."""

    generate_s: float
    """All responses, side by side."""
    engine_s: float
    """For which the engine is busy with them; 0 where it decodes those of any number of steps as fast as of one."""
    longest_s: float
    """Until the last verdict where each follows its response: the longest response and its judgement."""
    reward_s: float
    """For which the verifiers are busy."""
    learn_s: float
    load_s: float
    """Publishing, loading and checking the new weights; 0: left out of it."""


@dataclass(frozen=True, slots=True)
class Found:
    """Seconds from step to step once the pipeline is full, ages in versions, and what no schedule beats."""

    step_s: float
    best_s: float
    age_mean: float
    age_max: float


def arms(workers: int) -> tuple[Arm, ...]:
    """Serial with one verifier and with as many as the others, overlapped, and asynchronous by landing."""
    return (
        Arm("serial, one verifier", serial, 1),
        Arm(f"serial, {workers} verifiers", serial, workers),
        Arm("overlapped", overlapped, workers),
        *(
            Arm(f"staleness {k}, {landing}", overlapped, workers, k, cast(Landing, landing))
            for k in (1, 2, 4)
            for landing in get_args(Landing)
        ),
    )


def best_s(arm: Arm, stages: Stages) -> float:
    """Seconds a step that no schedule of these stages beats: one after the other where the arm is serial; else a step's
    own chain over the steps that may be on their way, or the busiest part.
    """
    learned_s = stages.learn_s + stages.load_s
    if arm.loop is serial:
        return stages.generate_s + stages.reward_s + learned_s
    chain = max(stages.longest_s, stages.engine_s) + learned_s
    return max(chain / (arm.staleness + 1), stages.engine_s, stages.reward_s, learned_s)


def table(found: Mapping[str, Found], base: str, more: Mapping[str, Sequence[str]] | None = None) -> list[str]:
    """A line for each arm by its name, the speed-up over ``base``; ``more`` are further columns, a cell for each."""
    further = dict(more or {})
    head = f"{'':24s} {'s/step':>8s} {'speed-up':>9s} {'of best':>8s} {'mean age':>9s} {'max age':>8s}"
    lines = [head + "".join(f"  {name}" for name in further)]
    for number, (name, f) in enumerate(found.items()):
        ratios = f"{found[base].step_s / f.step_s:8.2f}x {f.best_s / f.step_s:8.3f}"
        cells = "".join(f"  {cells[number]:>{len(title)}}" for title, cells in further.items())
        lines.append(f"{name:24s} {f.step_s:8.1f} {ratios} {f.age_mean:9.2f} {f.age_max:8g}{cells}")
    return lines
