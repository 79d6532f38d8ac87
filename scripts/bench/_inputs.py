"""Inputs of engines and learners that several benchmarks make: batches, and what an episode is made from."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from overlap.config import Config, load_config
from overlap.core import Batch, Group, Prompt, Request, Scored, Trajectory, VersionSpan
from overlap.server import Budget

WIDE: Final = Budget(turns=1000, tokens=10**9, context=2000)
"""A budget that no episode of a benchmark reaches."""


def random_batch(
    version: int, groups: int, samples: int, prompt: tuple[int, int], response: tuple[int, int], vocab: int
) -> Batch:
    """Return a batch of random tokens, always the same for a ``version``; ``prompt`` and ``response`` are the shortest
    and the longest length in tokens.
    """
    rng = random.Random(version)

    def tokens(shortest: int, longest: int) -> tuple[int, ...]:
        return tuple(rng.randrange(vocab) for _ in range(rng.randint(shortest, longest)))

    def scored(group: int, sample: int, given: Prompt) -> Scored:
        ids = tokens(*response)
        logprobs = tuple(-9.0 - rng.random() for _ in ids)
        spans = (VersionSpan(version, 0, len(ids)),)
        return Scored(Trajectory(Request(group, sample, given), ids, logprobs, "", "stop", spans, 0.0, 1.0), 1.0)

    def group(number: int) -> Group:
        given = Prompt(f"p{number}", tokens(*prompt))
        answers = tuple(scored(number, sample, given) for sample in range(samples))
        return Group(number, given, answers, tuple((1.0, -1.0, 0.5, -0.5)[k % 4] for k in range(samples)))

    return Batch(version + 1, version, tuple(map(group, range(groups))))


def episode_config(policy: Path, sequences: int) -> Config:
    """Return the configuration of an engine on the CPU for episodes of a tiny policy."""
    settings = [f"model.policy={policy}", "model.dtype=float32", "run.device=cpu"]
    settings += ["model.prompt_tokens=1000", "model.response_tokens=1000", "learn.micro_batch_tokens=2000"]
    return load_config(None, [*settings, f"rollout.max_sequences={sequences}"])


@asynccontextmanager
async def free() -> AsyncIterator[None]:
    """Stand for a place in the engine that is always free."""
    yield
