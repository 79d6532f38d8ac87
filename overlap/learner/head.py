"""Log-probs of given tokens without ever holding all logits: a linear layer, log-softmax and a gather in one.

A vocabulary of 49,152 makes the float32 logits of 4,096 tokens 0.8 GB, and autograd would keep several such
tensors. Here they are float32 for one chunk of tokens at a time. In the weights' number type they exist for a block
of tokens: kept for the backward pass when there is only one, computed again otherwise, and overwritten there by their
own gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

CHUNK_BYTES = 24 << 20
"""Size of the float32 logits of one chunk; under 32 MiB, so that glibc uses the same memory for one after the other."""
GPU_CHUNK_BYTES = 256 << 20
"""The same on a GPU, where each kernel of a chunk should have enough to do."""
BLOCK_BYTES = 512 << 20
"""Size of the logits of one block, at 2 bytes each."""


@dataclass(frozen=True, slots=True)
class HeadKernels:
    """Operations on the logits ``raw`` [C, V], in the weights' number type, of some tokens."""

    measure: Callable[[Tensor, Tensor, float, bool], tuple[Tensor, Tensor, Tensor | None]]
    """``raw``, targets [C], temperature and whether to compute entropies, to log-probs, logarithms of the normalisers
    and entropies, [C] in float32. ``raw`` stays."""
    descend: Callable[..., None]
    """The gradient takes the place of ``raw``: see ``_descend``."""
    chunks: bool = True
    """True when they make float32 copies, so that they need few tokens at a time."""


class LogprobHead(nn.Module):
    """The policy's output layer, sharing its parameters: hidden states [T, h] and tokens [T] to log-probs [T].

    A module of its own, so that the hooks of ZeRO-3 gather its weight.
    """

    def __init__(self, output: nn.Linear, temperature: float) -> None:
        super().__init__()
        self.weight, self.bias = output.weight, output.bias
        self.temperature = temperature
        self.kernels = EAGER

    def forward(self, hidden: Tensor, targets: Tensor, entropy: bool = False) -> tuple[Tensor, Tensor]:
        """Log-probs [T] at the temperature, float32, and entropies [T] of the distributions (zeros unless asked)."""
        given = hidden, self.weight, self.bias, targets, self.temperature, entropy, self.kernels
        logprobs, entropies = _Logprobs.apply(*given)
        return logprobs, entropies


class _Logprobs(torch.autograd.Function):
    """With z = (x W^T + b) / t and p = softmax(z): log p_y, whose gradient in z is onehot_y - p, and the entropy
    H = -sum p log p, whose gradient in z is -p (log p + H).
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: float,
        entropy: bool,
        kernels: HeadKernels,
    ) -> tuple[Tensor, Tensor]:
        logprobs = hidden.new_empty(len(hidden), dtype=torch.promote_types(hidden.dtype, torch.float32))
        entropies, normalisers = torch.zeros_like(logprobs), torch.empty_like(logprobs)
        blocks = _blocks(len(hidden), len(weight))
        raw = None
        for block in blocks:
            raw = nn.functional.linear(hidden[block], weight, bias)
            for part, at in _chunks(block, raw, kernels):
                logprobs[at], normalisers[at], found = kernels.measure(raw[part], targets[at], temperature, entropy)
                if found is not None:
                    entropies[at] = found
        ctx.save_for_backward(hidden, weight, bias, targets, normalisers, entropies)
        ctx.kept = raw if any(ctx.needs_input_grad) and len(blocks) == 1 else None
        ctx.temperature, ctx.entropy, ctx.kernels = temperature, entropy, kernels
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, normalisers, entropies = ctx.saved_tensors
        d_hidden = torch.empty_like(hidden)
        d_weight: Tensor | None = None
        d_bias = torch.zeros_like(bias, dtype=normalisers.dtype) if bias is not None else None
        for block in _blocks(len(hidden), len(weight)):
            raw = ctx.kept if ctx.kept is not None else nn.functional.linear(hidden[block], weight, bias)
            ctx.kept = None
            for part, at in _chunks(block, raw, ctx.kernels):
                d_log, d_ent = grads[0][at], grads[1][at] if ctx.entropy else None
                given = raw[part], targets[at], normalisers[at], entropies[at], d_log, d_ent, ctx.temperature
                ctx.kernels.descend(*given)
            torch.mm(raw, weight, out=d_hidden[block])
            if not ctx.needs_input_grad[1]:  # frozen: a third of the work
                continue
            product = raw.T @ hidden[block]
            # Blocks are added up in float32: many small sums in bfloat16 would lose the small ones.
            d_weight = product if d_weight is None else d_weight.to(normalisers.dtype).add_(product)
            if d_bias is not None:
                d_bias += raw.sum(0, dtype=normalisers.dtype)
        if not ctx.needs_input_grad[1]:
            return d_hidden, *[None] * 6
        d_weight = torch.zeros_like(weight) if d_weight is None else d_weight.to(weight.dtype)
        return d_hidden, d_weight, None if d_bias is None else d_bias.to(bias.dtype), *[None] * 4


def _measure(raw: Tensor, targets: Tensor, temperature: float, entropy: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    z = _scaled(raw, temperature)
    chosen, largest = z.gather(-1, targets[:, None])[:, 0], z.amax(-1)
    mean = (z.softmax(-1) * z).sum(-1) if entropy else None
    # In place, as each further pass over [C, V] that allocates costs as much as the product above.
    normalisers = z.sub_(largest[:, None]).exp_().sum(-1).log_().add_(largest)
    return chosen - normalisers, normalisers, None if mean is None else normalisers - mean


def _descend(
    raw: Tensor,
    targets: Tensor,
    normaliser: Tensor,
    entropy: Tensor,
    d_log: Tensor,
    d_entropy: Tensor | None,
    temperature: float,
) -> None:
    """Put the gradient in the logits [C, V] in their place, computed in float32 (float64 stays)."""
    log_p = _scaled(raw, temperature).sub_(normaliser[:, None])
    if d_entropy is None:
        d = log_p.exp_().mul_(-d_log[:, None])
    else:
        d = log_p.exp()
        d.mul_(log_p.add_(entropy[:, None]).mul_(d_entropy[:, None]).add_(d_log[:, None]).neg_())
    d.scatter_add_(-1, targets[:, None], d_log[:, None])
    raw.copy_(d.div_(temperature) if temperature != 1.0 else d)


EAGER = HeadKernels(_measure, _descend)
"""Operation by operation: the reference."""


def _scaled(raw: Tensor, temperature: float) -> Tensor:
    """A float32 copy (float64 stays) that may be overwritten, divided by the temperature."""
    z = raw.to(torch.promote_types(raw.dtype, torch.float32), copy=True)
    return z.div_(temperature) if temperature != 1.0 else z


def _blocks(tokens: int, vocabulary: int) -> list[slice]:
    return _slices(0, tokens, BLOCK_BYTES // (2 * vocabulary))


def _chunks(block: slice, raw: Tensor, kernels: HeadKernels) -> list[tuple[slice, slice]]:
    """Parts of a block of logits, as places in it and as places of all tokens."""
    size = (CHUNK_BYTES if raw.device.type == "cpu" else GPU_CHUNK_BYTES) // (4 * raw.shape[-1])
    parts = _slices(block.start, block.stop, size if kernels.chunks else len(raw))
    return [(slice(at.start - block.start, at.stop - block.start), at) for at in parts]


def _slices(first: int, stop: int, size: int) -> list[slice]:
    size = max(1, size)
    return [slice(start, min(stop, start + size)) for start in range(first, stop, size)]
