"""Groups of samples with these rewards."""

from __future__ import annotations

from typing import Any

from overlap.config import LearnConfig
from overlap.core import Group, Prompt, Request, Scored, Trajectory, VersionSpan
from overlap.pipeline.group import make_group

PROMPT = Prompt("p", (1, 2))
LIMIT = 100
"""Tokens of the longest response."""


def scored(sample: int, reward: float | None, finish: Any = "stop", length: int = 1) -> Scored:
    span = (VersionSpan(0, 0, length),)
    request = Request(0, sample, PROMPT)
    return Scored(Trajectory(request, (5,) * length, (-0.5,) * length, "x", finish, span, 0.0, 1.0), reward)


def group_of(*rewards: float | tuple[float | None, int] | None, finish: str = "stop", **learn: Any) -> Group:
    """A reward may come with the length of its response. Samples are handed over last first."""
    each = [reward if isinstance(reward, tuple) else (reward, 1) for reward in rewards]
    samples = [scored(k, reward, finish, length) for k, (reward, length) in enumerate(each)]
    return make_group(0, PROMPT, samples[::-1], LearnConfig(**learn), LIMIT)
