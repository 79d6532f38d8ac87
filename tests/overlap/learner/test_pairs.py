"""Pairs of tokens that attention computes: by formula, and as the kernels are really called."""

from __future__ import annotations

from array import array
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from responses import each_alone, response
from torch.utils._python_dispatch import TorchDispatchMode

from overlap.learner.attention import packed_attention
from overlap.learner.micro_batch import PromptGroup, SplitConfig, mini_batches
from overlap.learner.pairs import causal_pairs, shared_pairs
from overlap.learner.tensors import to_tensors

K = 1024


@given(st.integers(1, 5000), st.lists(st.integers(0, 40000), min_size=1, max_size=16))
def test_a_shared_prompt_is_computed_once(prompt, responses):
    alone = [prompt + length for length in responses]
    saved = (len(responses) - 1) * prompt * (prompt + 1) // 2
    assert shared_pairs(prompt, responses) == sum(n * (n + 1) // 2 for n in alone) - saved


def long_group(prompt: int, lengths: list[int]) -> PromptGroup:
    return PromptGroup(array("i", bytes(4 * prompt)), tuple(response([0] * n) for n in lengths))


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("budget", [0, 20000, 10**6])
@pytest.mark.parametrize(("prompt", "length"), [*product([K // 2, 4 * K], [K, 4 * K, 32 * K])])
def test_the_kernels_compute_no_more_pairs_than_plain_causal_attention(prompt, length, budget, share):
    """Eight responses of one length and eight of many; nothing is computed, so 32K tokens cost little."""
    for lengths in ([length] * 8, [length * n // 8 for n in range(1, 9)]):
        groups = [long_group(prompt, lengths)]
        (mini,) = mini_batches(groups if share else each_alone(groups), SplitConfig(1, 1, budget, 64))
        computed = sum(kernel_pairs(micro) for micro in mini.ranks[0])
        assert computed <= 1.02 * sum(causal_pairs(prompt + n - 1) for n in lengths)


def kernel_pairs(micro) -> int:
    """What the attention kernels of a micro-batch are asked to compute, forward; none gets a mask."""
    counted = []

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            assert "bmm" not in str(func)
            if "scaled_dot_product" not in str(func):
                return func(*args, **(kwargs or {}))
            query, key, is_causal = args[0], args[1], args[4] if len(args) > 4 else False
            assert (kwargs or {}).get("attn_mask") is None
            counted.append(len(query) * (causal_pairs(query.shape[2]) if is_causal else query.shape[2] * key.shape[2]))
            return torch.zeros_like(query), query.new_zeros(query.shape[:3])

    tensors = to_tensors(micro)
    rows, length = tensors.ids.shape
    with Count():
        query, key = torch.zeros(rows, 2, length, 8), torch.zeros(rows, 1, length, 8)
        packed_attention(None, query, key, key, None, layout=tensors.layout)
    assert counted
    return sum(counted)


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_sharing_leaves_no_rank_idle(ranks):
    """One group is one row where it fits; split over ranks it is less for the busiest of them."""

    def busiest(groups: list[PromptGroup]) -> int:
        (mini,) = mini_batches(groups, SplitConfig(1, ranks, 10**6, 64))
        return max(sum(m.tokens for m in rank if m.counts) for rank in mini.ranks)

    groups = [long_group(64, [512] * 8)]
    assert busiest(groups) <= busiest(each_alone(groups)) == -(-8 // ranks) * (64 + 511)
