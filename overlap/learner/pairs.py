"""Number of token pairs that the attention of a micro-batch computes, by layout; lengths are of tokens that are read.

A causal kernel computes the lower triangle, a kernel with a mask the whole rectangle, whatever the mask hides::

    shared    the prompt once; each response its prompt and itself     P(P + 1) / 2 + sum over r of P r + r(r + 1) / 2
    masked    as shared, padded to the longest, under one mask         prompts P P, responses R (P + R), each

Shared is never more than responses that each have a copy of their prompt. Masked is, once responses are about as long
as prompts, but takes two calls for a whole micro-batch: it is for what is so small that calls cost more than pairs.
"""

from __future__ import annotations

from collections.abc import Sequence

SMALL = 1 << 18
"""Pairs of one response (or prompt), up to which one masked product beats a causal kernel on a CPU in bfloat16."""
MASK = 1 << 24
"""Entries of the largest mask that is ever made."""


def causal_pairs(length: int) -> int:
    """Pairs of a sequence that attends to itself."""
    return length * (length + 1) // 2


def shared_pairs(prompt: int, responses: Sequence[int]) -> int:
    """Pairs of responses behind one prompt."""
    return causal_pairs(prompt) + sum(prompt * response + causal_pairs(response) for response in responses)


def fits_mask(prompts: Sequence[int], responses: Sequence[int]) -> bool:
    """True when all of a micro-batch is small enough for one mask."""
    longest_p, longest_r = max(prompts), max(responses, default=0)
    seen = longest_p + longest_r
    return max(longest_p, longest_r) * seen <= SMALL and len(responses) * longest_r * seen <= MASK
