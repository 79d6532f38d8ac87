"""Attention of packed rows without padding and without a mask: no more pairs of tokens than plain causal attention.

A row is a prompt and what shares it, one behind the other. By what the device has::

    CPU           the prompt causally, all responses on the prompt at once, each response causally on itself; the
                  last two are joined by their normalisers (as ring attention does; Liu et al. 2023)
    CUDA, flash   one kernel of variable length: a response's keys are its prompt's and its own
    else          each response behind its prompt, causally (the prompt's part is computed again)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

_FLASH_FROM = (8, 0)  # compute capability: Ampere
_FLASH_HEAD = 256  # widest head of its kernels


@dataclass(frozen=True, slots=True)
class RowSpan:
    """Places of a prompt and of its responses, which follow each other."""

    prompt: range
    responses: tuple[range, ...] = ()

    @property
    def shared(self) -> range:
        """Places of all responses."""
        return range(self.prompt.stop, self.responses[-1].stop if self.responses else self.prompt.stop)

    def joined(self) -> RowSpan:
        """The same without responses that are empty; one that shares its prompt with no other is part of it."""
        some = tuple(span for span in self.responses if span)
        return RowSpan(self.prompt, some) if len(some) > 1 else RowSpan(range(self.prompt.start, self.shared.stop))


@dataclass(frozen=True, slots=True)
class Spans:
    """Rows that fill a sequence [N], ``joined``.

    ``keys`` [M] are the places of the keys of one piece (a prompt, a response) after the other, None where they are
    0 to N - 1; ``queries_from`` and ``keys_from`` [pieces + 1] (int32) are where the queries and keys of each begin.
    """

    rows: tuple[RowSpan, ...]
    keys: Tensor | None
    queries_from: Tensor
    keys_from: Tensor
    most_queries: int
    most_keys: int


def make_spans(rows: Sequence[RowSpan], device: torch.device | str) -> Spans:
    """Return the arguments of the kernel of variable length for the rows."""
    pieces = [piece for row in rows for piece in _pieces(row)]
    queries = [len(own) for _, own in pieces]
    seen = [len(before) + len(own) for before, own in pieces]
    keys = None
    if any(before for before, _ in pieces):
        keys = torch.cat([torch.arange(span.start, span.stop) for piece in pieces for span in piece]).to(device)
    return Spans(tuple(rows), keys, _ends(queries, device), _ends(seen, device), max(queries), max(seen))


def _pieces(row: RowSpan) -> Iterator[tuple[range, range]]:
    """Yield what is seen before a piece, and the piece itself."""
    yield range(0), row.prompt
    for response in row.responses:
        yield row.prompt, response


def _ends(lengths: list[int], device: torch.device | str) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32).to(device)


def span_attention(query: Tensor, key: Tensor, value: Tensor, spans: Spans, scaling: float | None) -> Tensor:
    """Query [1, H, N, D], key and value [1, K, N, D] to [1, N, H, D]."""
    if query.device.type == "cpu" and query.shape[-1] == value.shape[-1]:
        out: Tensor = _OnCpu.apply(query, key, value, spans.rows, scaling)
        return out.transpose(1, 2)
    if _has_flash(query, value):
        return _flash(query, key, value, spans, scaling)
    return _each(query, key, value, spans, scaling).transpose(1, 2)


def _has_flash(query: Tensor, value: Tensor) -> bool:
    width = query.shape[-1]
    fits = query.dtype == torch.bfloat16 and width == value.shape[-1] and width % 8 == 0 and width <= _FLASH_HEAD
    return fits and query.is_cuda and bool(torch.cuda.get_device_capability(query.device) >= _FLASH_FROM)


class _Pick(torch.autograd.Function):
    """Rows [N, ...] to rows [M, ...]; the gradients of one that is picked often are added up in float32."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(places)
        ctx.rows = len(rows)
        return rows.index_select(0, places)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (places,) = ctx.saved_tensors
        (grad,) = grads
        total = grad.new_zeros((ctx.rows, *grad.shape[1:]), dtype=torch.promote_types(grad.dtype, torch.float32))
        return total.index_add_(0, places, grad.to(total.dtype)).to(grad.dtype), None


def _flash(query: Tensor, key: Tensor, value: Tensor, spans: Spans, scaling: float | None) -> Tensor:
    """Its causal mask ends with the last query at the last key, so a response sees all of its prompt."""
    from torch.nn.attention import varlen

    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    if spans.keys is not None:
        k, v = _Pick.apply(k, spans.keys), _Pick.apply(v, spans.keys)
    out: Tensor = varlen.varlen_attn(
        q, k, v, spans.queries_from, spans.keys_from, spans.most_queries, spans.most_keys,
        scale=scaling, window_size=(-1, 0), **_shared_heads(varlen.varlen_attn, q.shape[1] != k.shape[1]),
    )  # fmt: skip
    return out[None]


@cache
def _shared_heads(kernel: Callable[..., Any], shared: bool) -> dict[str, bool]:
    """Argument for queries that share heads of keys: torch 2.11 has no such argument, and accepts such queries."""
    return {"enable_gqa": shared} if "enable_gqa" in inspect.signature(kernel).parameters else {}


def _each(query: Tensor, key: Tensor, value: Tensor, spans: Spans, scaling: float | None) -> Tensor:
    """[1, H, N, D], by the plain causal attention of torch."""
    found = []
    for row in spans.rows:
        q, k, v = (x[:, :, _at(row.prompt)] for x in (query, key, value))
        found.append(causal_attention(q, k, v, scaling))
        for own in row.responses:
            q, k, v = (torch.cat((x[:, :, _at(row.prompt)], x[:, :, _at(own)]), 2) for x in (query, key, value))
            found.append(causal_attention(q, k, v, scaling)[:, :, len(row.prompt) :])
    return torch.cat(found, 2)


def causal_attention(query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
    """Query [B, H, N, D], key and value [B, K, N, D] to [B, H, N, D], by torch."""
    gqa = query.shape[1] != key.shape[1]
    return scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=gqa)


def _at(span: range) -> slice:
    return slice(span.start, span.stop)


class _OnCpu(torch.autograd.Function):
    """Query [1, H, N, D], key and value [1, K, N, D] to [1, H, N, D].

    A part of the keys gives its own output and log of its normaliser; with those of all keys in their place, the
    kernel's backward pass of a part gives that part's share of the gradient.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, rows: tuple[RowSpan, ...], scaling: float | None
    ) -> Tensor:
        one, heads, length, width = query.shape
        wide = torch.promote_types(query.dtype, torch.float32)
        out = query.new_empty(one, length, heads, width).transpose(1, 2)  # as the kernel and the caller have them
        normaliser = query.new_empty((one, length, heads), dtype=wide).transpose(1, 2)
        for row in rows:
            for own in (row.prompt, *row.responses):
                at = _at(own)
                out[:, :, at], normaliser[:, :, at] = _forward(query, key, value, own, own, True, scaling)
            if row.responses:
                at = _at(row.shared)
                others, theirs = _forward(query, key, value, row.shared, row.prompt, False, scaling)
                part = torch.sigmoid(theirs - normaliser[:, :, at])[..., None]
                out[:, :, at] = torch.lerp(out[:, :, at].to(wide), others.to(wide), part)
                normaliser[:, :, at] = torch.logaddexp(normaliser[:, :, at], theirs)
        ctx.save_for_backward(query, key, value, out, normaliser)
        ctx.rows, ctx.scaling = rows, scaling
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, normaliser = ctx.saved_tensors
        found = [torch.empty_like(x) for x in (query, key, value)]

        def part(own: range, seen: range, causal: bool) -> tuple[Tensor, ...]:
            at, keys = _at(own), _at(seen)
            given = (grads[0][:, :, at], query[:, :, at], key[:, :, keys], value[:, :, keys], out[:, :, at])
            backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
            parts: tuple[Tensor, ...] = backward(*given, normaliser[:, :, at], 0.0, causal, scale=ctx.scaling)
            return parts

        for row in ctx.rows:
            for own in (row.prompt, *row.responses):
                for whole, piece in zip(found, part(own, own, True), strict=True):
                    whole[:, :, _at(own)] = piece
            if row.responses:
                spans = (row.shared, row.prompt, row.prompt)
                for whole, piece, span in zip(found, part(row.shared, row.prompt, False), spans, strict=True):
                    whole[:, :, _at(span)] += piece
        return (*found, None, None)


def _forward(
    query: Tensor, key: Tensor, value: Tensor, own: range, seen: range, causal: bool, scaling: float | None
) -> tuple[Tensor, Tensor]:
    """Output and log of the normaliser of the queries at ``own`` on the keys at ``seen``."""
    qkv = query[:, :, _at(own)], key[:, :, _at(seen)], value[:, :, _at(seen)]
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    out, normaliser = kernel(*qkv, 0.0, causal, scale=scaling)
    return out, normaliser
