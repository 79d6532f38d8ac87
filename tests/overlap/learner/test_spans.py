"""Attention by spans against softmax under a mask, in outputs and gradients, by each of its ways."""

from __future__ import annotations

import pytest
import torch

from overlap.learner.spans import RowSpan, _each, _flash, make_spans, span_attention

ROWS = [
    RowSpan(range(9), (range(9, 12), range(12, 31))),
    RowSpan(range(31, 40)),
    RowSpan(range(40, 41), (range(41, 50), range(50, 51))),
]
LENGTH = 51


def qkv(dtype=torch.float64, heads=6, shared=2, width=16):
    torch.manual_seed(0)
    return [
        torch.randn(1, LENGTH, n, width, dtype=dtype).transpose(1, 2).requires_grad_() for n in (heads, shared, shared)
    ]


def by_mask(query, key, value, scaling):
    """Softmax over what each token sees: its prompt, and what is not behind it in its own piece."""
    sees = torch.zeros(LENGTH, LENGTH, dtype=torch.bool)
    for row in ROWS:
        for own in (row.prompt, *row.responses):
            for place in own:
                sees[place, own.start : place + 1] = True
                if own is not row.prompt:
                    sees[place, row.prompt.start : row.prompt.stop] = True
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    scores = (query @ key.transpose(-1, -2)) * scaling
    return (scores.masked_fill(~sees, float("-inf")).softmax(-1) @ value).transpose(1, 2)


def varlen_attn(q, k, v, cu_q, cu_k, max_q, max_k, *, scale, window_size, enable_gqa):
    """As torch documents its kernel: causal, with the last query at the last key of each sequence."""
    assert window_size == (-1, 0)
    assert enable_gqa == (q.shape[1] != k.shape[1])
    assert cu_q.dtype == cu_k.dtype == torch.int32
    found, spans = [], zip(cu_q.tolist(), cu_q.tolist()[1:], cu_k.tolist(), cu_k.tolist()[1:], strict=False)
    for q_from, q_to, k_from, k_to in spans:
        count, seen = q_to - q_from, k_to - k_from
        assert count <= max_q
        assert seen <= max_k
        mask = torch.ones(count, seen, dtype=torch.bool).tril(seen - count)
        mine = (q[q_from:q_to], k[k_from:k_to], v[k_from:k_to])
        found.append(
            torch.nn.functional.scaled_dot_product_attention(
                *(x.transpose(0, 1)[None] for x in mine), attn_mask=mask, scale=scale, enable_gqa=enable_gqa
            )[0].transpose(0, 1)
        )
    return torch.cat(found)


def older_varlen_attn(
    query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, return_aux=None, scale=None, window_size=(-1, -1)
):
    """With the arguments of torch 2.11, where fewer heads of keys need no saying."""
    shared, how = query.shape[1] != key.shape[1], {"scale": scale, "window_size": window_size}
    return varlen_attn(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, **how, enable_gqa=shared)


KERNELS = {"flash": varlen_attn, "flash of torch 2.11": older_varlen_attn}
WAYS = {
    "cpu": span_attention,
    **dict.fromkeys(KERNELS, _flash),
    "each": lambda *args: _each(*args).transpose(1, 2),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("shared", "scaling"), [(6, None), (2, 0.3), (1, None)])
def test_each_way_has_the_outputs_and_gradients_of_softmax_under_a_mask(monkeypatch, way, shared, scaling):
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", KERNELS.get(way))
    inputs = qkv(shared=shared)
    expected = by_mask(*inputs, scaling or 16**-0.5)
    got = WAYS[way](*inputs, make_spans(ROWS, "cpu"), scaling)
    assert torch.allclose(got, expected, atol=1e-12)
    upstream = torch.randn_like(got)
    pairs = zip(
        torch.autograd.grad(got, inputs, upstream), torch.autograd.grad(expected, inputs, upstream), strict=True
    )
    for mine, theirs in pairs:
        assert torch.allclose(mine, theirs, atol=1e-11)


def test_picked_gradients_add_up_in_float32():
    """Each is half a step of bfloat16 at 1: added one by one in bfloat16 they would be lost."""
    from overlap.learner.spans import _Pick

    rows = torch.zeros(1, 1, dtype=torch.bfloat16, requires_grad=True)
    picked = _Pick.apply(rows, torch.zeros(65, dtype=torch.long))
    upstream = torch.full((65, 1), 2.0**-9, dtype=torch.bfloat16)
    upstream[0] = 1.0
    (grad,) = torch.autograd.grad(picked, rows, upstream)
    assert grad.item() == pytest.approx(1.125)
