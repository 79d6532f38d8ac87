"""The load that the fakes of several benchmarks have: a step's shape, and seconds of generation and verification."""

from __future__ import annotations

import math
import random

from overlap.config.fields import Config
from overlap.config.load import load_config

GENERATE_S, REWARD_S = 180.0, 140.0
GROUPS, SAMPLES, WORKERS = 16, 8, 8
VERIFY_S = REWARD_S * WORKERS / (GROUPS * SAMPLES)
"""Mean seconds of a verification, so that a step keeps ``WORKERS`` busy for ``REWARD_S``."""


def long_tail(rng: random.Random) -> float:
    """Return seconds of generation: log-normal lengths, cut at the longest response."""
    return min(GENERATE_S, GENERATE_S * 0.22 * math.exp(0.75 * rng.gauss(0.0, 1.0)))


def mean_generation_s(draws: int = 100_000) -> float:
    """Return the mean of ``long_tail``."""
    rng = random.Random(0)
    return math.fsum(long_tail(rng) for _ in range(draws)) / draws


def verify_time(rng: random.Random) -> float:
    """Return seconds of verification, ``VERIFY_S`` in the mean."""
    return VERIFY_S * (0.5 + rng.random())


def fake_config(steps: int, *more: str, groups: int = GROUPS, samples: int = SAMPLES) -> Config:
    """Return the configuration of a run on the fakes and a virtual clock; ``more`` are further settings."""
    shape = [f"rollout.groups_per_step={groups}", f"rollout.samples_per_group={samples}", f"run.steps={steps}"]
    return load_config(None, [*shape, "run.stall_s=100000", *more])
