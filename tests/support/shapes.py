"""Sizes of models that are too large to be here, as their config.json has them."""

from __future__ import annotations

from typing import Any

from overlap.placement.shapes import ModelShape, shape_of


def _qwen(**sizes: int) -> dict[str, Any]:
    return sizes | {"tie_word_embeddings": False}


R1_DISTILL_14B = _qwen(
    num_hidden_layers=48, hidden_size=5120, num_attention_heads=40, num_key_value_heads=8, intermediate_size=13824,
    vocab_size=152064,
)  # fmt: skip
R1_DISTILL_1_5B = _qwen(
    num_hidden_layers=28, hidden_size=1536, num_attention_heads=12, num_key_value_heads=2, intermediate_size=8960,
    vocab_size=151936,
)  # fmt: skip
R1_DISTILL_7B = _qwen(
    num_hidden_layers=28, hidden_size=3584, num_attention_heads=28, num_key_value_heads=4, intermediate_size=18944,
    vocab_size=152064,
)  # fmt: skip
LARGE: ModelShape = shape_of(R1_DISTILL_14B)
SMALL: ModelShape = shape_of(R1_DISTILL_1_5B)
MIDDLE: ModelShape = shape_of(R1_DISTILL_7B)
