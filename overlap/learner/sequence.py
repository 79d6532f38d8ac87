"""Sequence parallelism: the ranks of a group hold a part each of the tokens of one micro-batch.

Around each layer's attention the backend (``share_sequences``) exchanges parts of the sequence for parts of the
heads, so that attention sees all of the sequence and its layout. Everything else is done token by token. The log-probs
of the parts are joined in the end: each rank computes the loss of all tokens, and sends back the gradient of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad

from overlap.learner.tensors import MicroTensors


@dataclass(frozen=True, slots=True)
class SequenceGroup:
    """``size`` ranks that share each sequence, of which this one is ``rank``; ``group`` is torch's."""

    group: Any
    rank: int
    size: int


def part(micro: MicroTensors, own: SequenceGroup) -> tuple[MicroTensors, Tensor]:
    """Part of the sequence [1, N] of this rank, and the places [t] of its predicted tokens among the counted ones.

    A sequence with a layout has been filled up to a multiple of ``size``; a plain one is here.
    """
    missing = -micro.ids.shape[1] % own.size
    assert not (missing and micro.layout), "a layout has a place for each token"
    ids, positions = pad(micro.ids, (0, missing)), pad(micro.positions, (0, missing))
    each = ids.shape[1] // own.size
    first = own.rank * each
    mine = ((micro.at >= first) & (micro.at < first + each)).nonzero()[:, 0]
    at = slice(first, first + each)
    local = replace(
        micro, ids=ids[:, at], positions=positions[:, at], at=micro.at[mine] - first, targets=micro.targets[mine]
    )
    return local, mine


class _Join(torch.autograd.Function):
    """Values [t, ...] at places [t] of each rank to all of them [T, ...] on every rank."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, places: Tensor, count: int, group: Any) -> Tensor:
        ctx.save_for_backward(places)
        joined = values.new_zeros((count, *values.shape[1:]))
        joined[places] = values
        dist.all_reduce(joined, group=group)
        return joined

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (places,) = ctx.saved_tensors
        return grads[0][places], None, None, None


def join(values: Tensor, places: Tensor, count: int, own: SequenceGroup) -> Tensor:
    """Join what the ranks have computed for their own tokens, for all ``count``. All must make the same loss of it."""
    joined: Tensor = _Join.apply(values, places, count, own.group)
    return joined
