"""Attention of packed micro-batches: prompts once, each response behind its prompt, nothing padded outside of here.

The policy reads all tokens of a micro-batch as one sequence [N] of prompts and responses, so its matrix products see no
padding and no prompt twice. Only attention needs to know who sees whom::

    prompts    [B, P]   attend to themselves, causally
    responses  [S, R]   attend to their prompt, and to themselves causally

Small ones are padded here and computed under one mask (``Layout``), all others one by one (``overlap.learner.spans``).

Registered as the attention "overlap_packed" of transformers; the layout comes down as a keyword argument of the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from overlap.learner.spans import Spans, causal_attention, span_attention

NAME = "overlap_packed"


@dataclass(frozen=True, slots=True)
class Layout:
    """Places of the N tokens of a sequence that is small (``overlap.learner.micro_batch.fits_mask``).

    ``prompts`` [B, P] and ``responses`` [S, R] hold places in the sequence (padded with place 0), ``owners`` [S]
    the prompt of each response, and ``visible`` [S, 1, R, P + R] what a response token sees. ``back`` [N] says
    where each token of the sequence went in the prompts, flattened, followed by the responses, flattened.
    """

    prompts: Tensor
    responses: Tensor
    owners: Tensor
    visible: Tensor
    back: Tensor


class _Pad(torch.autograd.Function):
    """Rows [N, ...] to their padded places [M, ...].

    What is in the padding is never seen by a token, so its gradient is zero and the backward pass is a pick.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, there: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(back)
        return rows.index_select(0, there)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (back,) = ctx.saved_tensors
        return grads[0].index_select(0, back), None, None


class _Unpad(torch.autograd.Function):
    """Padded places [M, ...] back to rows [N, ...]; each row comes from one place, so the backward pass is a copy."""

    @staticmethod
    def forward(ctx: Any, places: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(back)
        ctx.places = len(places)
        return places.index_select(0, back)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (back,) = ctx.saved_tensors
        return grads[0].new_zeros(ctx.places, *grads[0].shape[1:]).index_copy_(0, back, grads[0]), None


def packed_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    layout: Layout | Spans | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention interface of transformers: query [B, H, N, D], key and value [B, K, N, D] to [B, N, H, D].

    Without a layout this is plain causal attention. Dropout is not for policies that an engine must reproduce.
    """
    if layout is None:
        return causal_attention(query, key, value, scaling).transpose(1, 2), None
    if isinstance(layout, Spans):
        return span_attention(query, key, value, layout, scaling), None
    there = torch.cat((layout.prompts.flatten(), layout.responses.flatten()))
    count = layout.prompts.numel()
    q, k, v = (_Pad.apply(x[0].transpose(0, 1), there, layout.back) for x in (query, key, value))
    q_p, k_p, v_p = (_heads_first(x[:count], layout.prompts) for x in (q, k, v))
    parts = [_attend(q_p, k_p, v_p, None, scaling)]
    if layout.responses.numel():
        q_r, k_r, v_r = (_heads_first(x[count:], layout.responses) for x in (q, k, v))
        k_r = torch.cat((k_p.index_select(0, layout.owners), k_r), 2)
        v_r = torch.cat((v_p.index_select(0, layout.owners), v_r), 2)
        parts.append(_attend(q_r, k_r, v_r, layout.visible, scaling))
    return _Unpad.apply(torch.cat(parts), layout.back)[None], None


def _attend(q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, scaling: float | None) -> Tensor:
    """Attention [B * R, H, D] of q [B, H, R, D] to k, v [B, K, T, D]; causal without ``visible`` [B, 1, R, T]."""
    if q.device.type == "cpu" and q.dtype == torch.bfloat16:
        out = _attend_small(q, k, v, visible, scaling or q.shape[-1] ** -0.5)
    else:
        heads = q.shape[1] // k.shape[1]
        if heads > 1:  # fused kernels with a mask need as many heads in k and v as in q
            k, v = k.repeat_interleave(heads, 1), v.repeat_interleave(heads, 1)
        out = scaled_dot_product_attention(q, k, v, attn_mask=visible, is_causal=visible is None, scale=scaling)
    return out.transpose(1, 2).flatten(0, 1)


def _attend_small(q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, scaling: float) -> Tensor:
    """The same by matrix products, twice as fast on a CPU in bfloat16; the softmax is in float32."""
    if visible is None:
        visible = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()
    heads = q.shape[1] // k.shape[1]
    grouped = q.unflatten(1, (k.shape[1], heads)).flatten(2, 3)
    out: Tensor = _Small.apply(grouped, k, v, visible, scaling, heads)
    return out.unflatten(2, (heads, q.shape[2])).flatten(1, 2)


class _Small(torch.autograd.Function):
    """Queries [B, K, h * R, D] of h heads per key head, keys and values [B, K, T, D] to [B, K, h * R, D].

    The weights [B, K, h, R, T] are computed again in the backward pass: kept, they would be a third of what a
    micro-batch holds. With weights P and incoming gradient g: dV = P^T g, dP = g V^T, and the gradient in the scores
    is P (dP - sum(P dP)).
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, visible: Tensor, scaling: float, heads: int) -> Tensor:
        ctx.save_for_backward(q, k, v, visible)
        ctx.scaling, ctx.heads = scaling, heads
        return _small_weights(q, k, visible, scaling, heads).to(v.dtype) @ v

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, visible = ctx.saved_tensors
        (grad,) = grads
        weights = _small_weights(q, k, visible, ctx.scaling, ctx.heads)
        d_value = weights.to(v.dtype).transpose(-1, -2) @ grad
        d_weights = (grad @ v.transpose(-1, -2)).to(weights.dtype)
        d_weights.sub_((weights * d_weights).sum(-1, keepdim=True)).mul_(weights).mul_(ctx.scaling)
        d_scores = d_weights.to(q.dtype)
        return d_scores @ k, d_scores.transpose(-1, -2) @ q, d_value, None, None, None


def _small_weights(q: Tensor, k: Tensor, visible: Tensor, scaling: float, heads: int) -> Tensor:
    """Softmax [B, K, h * R, T], float32 or wider."""
    scores = (q @ k.transpose(-1, -2)).unflatten(2, (heads, -1))
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    hidden = torch.zeros(visible.shape, dtype=scores.dtype, device=q.device).masked_fill_(~visible, float("-inf"))
    scores = torch.add(hidden[:, :, None] if hidden.dim() == 4 else hidden, scores, alpha=scaling)
    return scores.softmax(-1).flatten(2, 3)


def _heads_first(rows: Tensor, places: Tensor) -> Tensor:
    """[B * P, H, D] to [B, H, P, D]."""
    return rows.unflatten(0, places.shape).transpose(1, 2)


def register() -> None:
    """Make the attention known to transformers; models are then loaded with ``attn_implementation=NAME``. What has been
    put around it for models loaded before (``overlap.learner.tensors``) stays.
    """
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    if NAME not in ALL_ATTENTION_FUNCTIONS:
        ALL_ATTENTION_FUNCTIONS.register(NAME, packed_attention)
