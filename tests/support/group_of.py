"""Groups of samples with these rewards."""

from __future__ import annotations

from typing import Any

from overlap.config.learn import LearnConfig
from overlap.core import Group, Prompt, Request, Scored, Trajectory, VersionSpan
from overlap.pipeline.assemble import make_group

LIMIT = 100
"""Tokens of the longest response."""


def scored(request: Request, reward: float | None, finish: Any = "stop", length: int = 1) -> Scored:
    span = (VersionSpan(0, 0, length),)
    return Scored(Trajectory(request, (5,) * length, (-0.5,) * length, "x", finish, span, 0.0, 1.0), reward)


Reward = float | tuple[float | None, int] | None


def group_of(*rewards: Reward, number: int = 0, prompt: str = "p", finish: str = "stop", **learn: Any) -> Group:
    """A reward may come with the length of its response. Samples are handed over last first."""
    each, asked = [reward if isinstance(reward, tuple) else (reward, 1) for reward in rewards], Prompt(prompt, (1, 2))
    samples = [scored(Request(number, k, asked), reward, finish, n) for k, (reward, n) in enumerate(each)]
    return make_group(number, asked, samples[::-1], LearnConfig(**learn), LIMIT)
