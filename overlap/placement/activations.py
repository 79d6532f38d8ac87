"""Bytes that a forward pass keeps for the backward pass: from a model's shape, a micro-batch's tokens and its number
type. For decoders built like Llama and Qwen; without the output layer, which never holds all logits.

Autograd keeps per token and layer, with w bytes a number, hidden size h, inner size i, query and key widths q and k::

    two norms          input and normaliser in float32, product and output     2 (4 h + 2 w h); in float32 2 (3 w h)
    attention          rotated queries and keys, values, output                w (2 q + 2 k)
    gated inner layer  gate, its activation, up, their product                 4 w i

Where layers are computed again it keeps each layer's input, w h, and all of the above for one layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

KEPT = 8 << 30
"""Bytes of activations that one rank keeps rather than computes again."""

Recompute = Literal["auto", "always", "never"]


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """Sizes of a decoder, in numbers; ``queries`` and ``keys`` are the widths of all their heads together."""

    layers: int
    hidden: int
    inner: int
    queries: int
    keys: int


def decoder_shape(config: Mapping[str, Any]) -> DecoderShape:
    """From the text model's part of a Hugging Face configuration. Families call their sizes differently: an inner size
    that is not found is 4 times the hidden size, as is usual, any other figure 0.
    """
    hidden = _figure(config, "hidden_size", "n_embd", "d_model")
    heads = _figure(config, "num_attention_heads", "n_head")
    width = _figure(config, "head_dim") or (hidden // heads if heads else 0)
    return DecoderShape(
        layers=_figure(config, "num_hidden_layers", "n_layer"),
        hidden=hidden,
        inner=_figure(config, "intermediate_size", "n_inner", "ffn_dim") or 4 * hidden,
        queries=heads * width,
        keys=(_figure(config, "num_key_value_heads") or heads) * width,
    )


def _figure(config: Mapping[str, Any], *names: str) -> int:
    return next((value for name in names if isinstance(value := config.get(name), int)), 0)


def trained_parameters(shape: DecoderShape, parameters: int, lora_rank: int) -> int:
    """Number of a policy's ``parameters`` that have gradients and optimizer states: all of them, or those of adapters
    of ``lora_rank`` on queries, keys, values, attention's output, and the gated inner layer's three.
    """
    if not lora_rank:
        return parameters
    h = shape.hidden
    widths = 2 * (h + shape.queries) + 2 * (h + shape.keys) + 3 * (h + shape.inner)
    return shape.layers * lora_rank * widths


def activation_bytes(shape: DecoderShape, tokens: int, *, width: int, recomputes: bool) -> int:
    """Bytes that one micro-batch of ``tokens`` keeps, at ``width`` bytes a number."""
    h, inner = shape.hidden, shape.inner
    norms = 2 * (4 * h + 2 * width * h) if width < 4 else 6 * width * h
    layer = norms + width * (2 * shape.queries + 2 * shape.keys) + 4 * width * inner
    if recomputes:
        return tokens * (shape.layers * width * h + layer)
    return tokens * shape.layers * layer


def recomputes(how: Recompute, shape: DecoderShape, tokens: int, *, width: int) -> bool:
    """True when layers are computed again in the backward pass: "auto" does where ``KEPT`` would not hold them."""
    if how != "auto":
        return how == "always"
    return activation_bytes(shape, tokens, width=width, recomputes=False) > KEPT
