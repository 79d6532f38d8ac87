"""Attention of a group's responses, timed beside plain causal attention of each, for ``scripts/bench/attention.py``."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from overlap.learner.micro_batch import (
    MicroBatch,
    PromptGroup,
    Response,
    SplitConfig,
    fits_mask,
    mini_batches,
    shared_pairs,
)


@dataclass(frozen=True, slots=True)
class AttentionCase:
    """A prompt and its responses in tokens, and the attention that reads them: query and key heads of ``width``."""

    prompt: int
    responses: tuple[int, ...]
    budget: int
    heads: int = 1
    keys: int = 1
    width: int = 64
    dtype: str = "bfloat16"

    @property
    def plain_pairs(self) -> int:
        """Pairs of plain causal attention, each response behind a prompt of its own."""
        return alone_pairs(self.prompt, [length - 1 for length in self.responses])

    @property
    def pairs(self) -> int:
        """Pairs that the micro-batches compute."""
        return sum(computed_pairs(micro) for micro in self.micros())

    def micros(self) -> tuple[MicroBatch, ...]:
        """The micro-batches of one rank."""
        made = (Response(array("i", bytes(4 * n)), array("f", bytes(4 * n)), 1.0) for n in self.responses)
        group = PromptGroup(array("i", bytes(4 * self.prompt)), tuple(made))
        (mini,) = mini_batches([group], SplitConfig(1, 1, self.budget, self.heads * self.width))
        return mini.ranks[0]


def alone_pairs(prompt: int, responses: Sequence[int]) -> int:
    """Pairs of responses that each have a copy of their prompt: plain causal attention without padding."""
    return sum(shared_pairs(prompt + response, ()) for response in responses)


def masked_pairs(prompts: Sequence[int], responses: Sequence[int]) -> int:
    """Pairs of a micro-batch's prompts and responses, padded to the longest of each, the responses under a mask."""
    longest_p, longest_r = max(prompts), max(responses, default=0)
    return len(prompts) * longest_p**2 + len(responses) * longest_r * (longest_p + longest_r)


def computed_pairs(micro: MicroBatch) -> int:
    """Pairs that attention computes for a micro-batch on a CPU, per head and layer."""
    if not micro.packed:
        return len(micro.rows) * shared_pairs(max(row.length for row in micro.rows), ())
    prompts = [len(row.prompt) for row in micro.rows]
    responses = [[len(r.tokens) - 1 for r in row.responses] for row in micro.rows]
    lengths = [length for row in responses for length in row]
    if fits_mask(prompts, lengths):
        return masked_pairs(prompts, lengths)
    return sum(shared_pairs(prompt, row) for prompt, row in zip(prompts, responses, strict=True))


def attention_seconds(case: AttentionCase, device: str = "cpu") -> tuple[float, float]:
    """Seconds of one forward and backward pass: of plain causal attention, and of the micro-batches' own.

    On a CPU they are CPU time, so that what else runs there does not count.
    """
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    from overlap.learner.attention import packed_attention
    from overlap.learner.tensors import to_tensors

    def inputs(length: int) -> list[Any]:
        heads, kind = (case.heads, case.keys, case.keys), getattr(torch, case.dtype)
        made = (torch.randn(1, length, n, case.width, dtype=kind, device=device).transpose(1, 2) for n in heads)
        return [tensor.requires_grad_() for tensor in made]

    gqa = case.heads != case.keys

    def plain(given: Sequence[Any]) -> Any:
        query, key, value = given
        return scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=gqa)

    def run(works: Sequence[tuple[Callable[[Sequence[Any]], Any], list[Any]]]) -> float:
        clock = time.process_time if device == "cpu" else time.perf_counter
        if device != "cpu":
            torch.cuda.synchronize()  # the inputs are made
        began = clock()
        for attend, given in works:
            attend(given).sum().backward()
        if device != "cpu":
            torch.cuda.synchronize()
        return clock() - began

    def own(micro: MicroBatch) -> tuple[Callable[[Sequence[Any]], Any], list[Any]]:
        tensors = to_tensors(micro, device)

        def attend(given: Sequence[Any]) -> Any:
            query, key, value = given
            return packed_attention(None, query, key, value, None, layout=tensors.layout)[0]

        return attend, inputs(tensors.ids.numel())

    one_by_one = run([(plain, inputs(case.prompt + length - 1)) for length in case.responses])
    return one_by_one, run([own(micro) for micro in case.micros()])
