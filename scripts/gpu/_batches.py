"""Batches for learners that several benchmarks make."""

from __future__ import annotations

import random

from overlap.core import Batch, Group, Prompt, Request, Scored, Trajectory, VersionSpan


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
