"""Warnings from a run's figures, in words, each with a way out: a table of checks over the data of the run.

    RunData ──▶ check, check, ... ──▶ RunWarning("entropy_collapse", text, way_out)

A check is a generator with ``@check``, which yields a text and a way out where the run is ill; its name is the
warning's kind, and has its line in ``docs/look.md``. Bounds are such that healthy runs of every kind stay silent: a
warning that is wrong once is not read again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from overlap.inspect.run_data import RunData
from overlap.record.timing import mean


class RunWarning(NamedTuple):
    """One warning: the observation with its figure, and what to do about it."""

    kind: str
    text: str
    way_out: str
    """A field of the configuration, or a command."""

    def __str__(self) -> str:
        return f"{self.text}: {self.way_out}"


Told = Iterator[tuple[str, str]]
"""The text and the way out of a warning."""
CHECKS: dict[str, Callable[[RunData], Told]] = {}
"""All checks by kind, the most urgent first."""
MIN_STEPS = 8
"""Steps that a run needs at least for a warning about changes of its figures."""
SOLVED = 0.9
"""Share of solved samples from which a policy has little left to learn: low entropy is then its success."""


def check(function: Callable[[RunData], Told]) -> Callable[[RunData], Told]:
    """Add ``function`` to the checks under its own name."""
    CHECKS[function.__name__] = function
    return function


def first_and_last(run: RunData, name: str) -> tuple[float, float]:
    """Means of a figure over the first and the last tenth of the steps that have it, at least 3 each; NaN where there
    are fewer than ``MIN_STEPS``.
    """
    values = run.known(name)
    if len(values) < MIN_STEPS:
        return math.nan, math.nan
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
    (_, last), shares = first_and_last(run, "reward/solved_share"), run.known("reward/solved_share")
    return (last if last == last else mean(shares) if shares else 0.0) < SOLVED


def reward_gain(run: RunData) -> float:
    """Mean reward at the end less that at the beginning; NaN for a short run."""
    first, last = first_and_last(run, "reward/mean")
    return last - first


def reward_rose(run: RunData) -> bool:
    """True when the reward is higher at the end than at the beginning, by more than its standard error."""
    return reward_gain(run) > max(0.02, reward_noise(run))


def reward_noise(run: RunData) -> float:
    """Standard error of the difference of two mean rewards over a tenth of the steps each, at least 3: by the
    differences from step to step, so that a trend counts little (von Neumann 1941), and at least what drawing the
    samples makes.
    """
    rewards = run.known("reward/mean")
    squares = [(b - a) * (b - a) for a, b in pairwise(rewards)]
    spread, samples = run.column("reward/std"), run.column("rollout/samples")
    drawn = [2 * s * s / n for s, n in zip(spread, samples, strict=True) if math.isfinite(s) and n > 0]
    width = max(3, len(rewards) // 10)
    return math.sqrt(max(mean(squares), mean(drawn) if drawn else 0.0) / width) if squares else math.inf


def field_of(run: RunData, section: str, name: str) -> object:
    """A value of the run's configuration; None where it has none."""
    return run.config.get(section, {}).get(name)


def first_names(names: Iterable[str]) -> str:
    """The first three names, and how many more there are."""
    every = list(names)
    return ", ".join(every[:3]) + (f" and {len(every) - 3} more" if len(every) > 3 else "")
