"""Warnings from a run's figures, in words, each with a way out: a table of checks over the data of the run.

    RunData ──▶ check, check, ... ──▶ RunWarning("entropy_collapse", steps, figure, bound, text, way_out)

A check is a function with ``@check``; its name is the warning's kind, and has its line in ``docs/look.md``. Bounds
are such that healthy runs of every kind stay silent: a warning that is wrong once is not read again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import NamedTuple

from overlap.inspect.run_data import RunData
from overlap.record.timing import mean


class RunWarning(NamedTuple):
    """One warning: over which steps, the figure that was found and the bound that it passed, and what to do."""

    steps: tuple[int, int]
    """The first and the last step that the figure is of."""
    figure: float
    bound: float
    text: str
    """The observation, with the figure."""
    way_out: str
    """A field of the configuration, or a command."""
    kind: str = ""

    def __str__(self) -> str:
        return f"{self.text}: {self.way_out}"


Check = Callable[[RunData], RunWarning | None]
CHECKS: dict[str, Check] = {}
"""All checks by kind, the most urgent first."""
MIN_STEPS = 8
"""Steps that a run needs at least for a warning about changes of its figures."""
SOLVED = 0.9
"""Share of solved samples from which a policy has little left to learn: low entropy is then its success."""


def check(function: Check) -> Check:
    """Add ``function`` to the checks under its own name."""
    CHECKS[function.__name__] = function
    return function


def all_steps(run: RunData) -> tuple[int, int]:
    """The first and the last step."""
    return int(run.steps[0]["step"]), int(run.steps[-1]["step"])


def first_and_last(run: RunData, name: str) -> tuple[float, float] | None:
    """Means of a figure over the first and the last tenth of the steps that have it, at least 3 each; None where there
    are fewer than ``MIN_STEPS``.
    """
    values = run.known(name)
    if len(values) < MIN_STEPS:
        return None
    width = max(3, len(values) // 10)
    return mean(values[:width]), mean(values[-width:])


def late_mean(run: RunData, name: str) -> float:
    """Mean of a figure over the second half of the steps that have it; NaN where there are fewer than 4."""
    values = run.known(name)
    return mean(values[len(values) // 2 :]) if len(values) >= 4 else math.nan


def unsolved(run: RunData) -> bool:
    """True when the policy still has much to learn: it fails on more than one sample in ten at the end; in a short
    run, in all of it.
    """
    course, shares = first_and_last(run, "reward/solved_share"), run.known("reward/solved_share")
    return (course[1] if course else mean(shares) if shares else 0.0) < SOLVED


def reward_gain(run: RunData) -> float:
    """Mean reward at the end less that at the beginning; NaN for a short run."""
    course = first_and_last(run, "reward/mean")
    return course[1] - course[0] if course else math.nan


def reward_rose(run: RunData) -> bool:
    """True when the reward is higher at the end than at the beginning, by more than its standard error."""
    width = max(3, len(run.known("reward/mean")) // 10)
    return reward_gain(run) > max(0.02, reward_noise(run, width))


def reward_noise(run: RunData, width: int) -> float:
    """Standard error of the difference of two mean rewards over ``width`` steps each: by the differences from step to
    step, so that a trend counts little (von Neumann 1941), and at least what drawing the samples makes.
    """
    squares = [(b - a) * (b - a) for a, b in pairwise(run.known("reward/mean"))]
    spread, samples = run.column("reward/std"), run.column("rollout/samples")
    drawn = [2 * s * s / n for s, n in zip(spread, samples, strict=True) if math.isfinite(s) and n > 0]
    return math.sqrt(max(mean(squares), mean(drawn) if drawn else 0.0) / width) if squares else math.inf


def field_of(run: RunData, section: str, name: str) -> object:
    """A value of the run's configuration; None where it is of a version without this field."""
    return run.config.get(section, {}).get(name)


def first_names(names: Iterable[str]) -> str:
    """The first three names, and how many more there are."""
    every = list(names)
    return ", ".join(every[:3]) + (f" and {len(every) - 3} more" if len(every) > 3 else "")
