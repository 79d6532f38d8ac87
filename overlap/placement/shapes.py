"""The sizes of a model that its memory follows from, by ``config.json`` and the heads of its safetensors files."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from overlap.core.errors import refusing
from overlap.placement.activations import DecoderShape, decoder_shape


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes in numbers. ``largest`` is those of the largest tensor; a ``tied`` head is the embedding's own tensor;
    ``context`` are the tokens of the longest sequence that it knows. 0: not known.
    """

    parameters: int
    decoder: DecoderShape
    vocabulary: int
    largest: int
    tied: bool
    heads: int = 0
    key_heads: int = 0
    context: int = 0

    def divides(self, parts: int) -> bool:
        """True when ``parts`` devices or ranks can share the heads of queries and of keys evenly."""
        return not (self.heads % parts or self.key_heads % parts)

    def splits(self, parts: int) -> bool:
        """True when an engine can have ``parts`` GPUs: each takes whole heads; keys are copied if there are fewer."""
        keys = max(1, self.key_heads)
        return not (self.heads % parts or (keys % parts and parts % keys))

    @property
    def trunk(self) -> int:
        """Parameters without an output layer: a critic's."""
        return self.parameters - (0 if self.tied else self.vocabulary * self.decoder.hidden)


def read_shape(policy: Path) -> ModelShape:
    """Read a checkpoint directory's shape. Without safetensors files its configuration implies the parameters.

    Families call their sizes differently, and wrap a text model in others: a figure that is not found is 0.

    Raises ConfigError for files that cannot be read.
    """
    unreadable = (OSError, ValueError, LookupError, TypeError, AttributeError)
    with refusing("model.policy", str(policy), "its files say nothing of its sizes", "download it anew", unreadable):
        foretold, sizes = shape_of(text_config(policy)), _tensor_sizes(policy)
    if not sizes:
        return foretold
    embedding = foretold.vocabulary * foretold.decoder.hidden
    return replace(foretold, parameters=sum(sizes), largest=max(sizes), tied=sizes.count(embedding) < 2)


def text_config(policy: Path) -> dict[str, Any]:
    """The part of ``config.json`` that is the text model's."""
    config: dict[str, Any] = json.loads((policy / "config.json").read_text())
    return config | (config.get("text_config") or {})


def shape_of(config: Mapping[str, Any]) -> ModelShape:
    """From a configuration alone, for decoders built like Llama and Qwen; biases of a few thousand numbers are left
    out.
    """
    decoder = decoder_shape(config)
    vocabulary, tied = int(config.get("vocab_size") or 0), bool(config.get("tie_word_embeddings", False))
    h, embedding = decoder.hidden, vocabulary * decoder.hidden
    layer = h * (2 * decoder.queries + 2 * decoder.keys + 3 * decoder.inner + 2)
    parameters = embedding * (1 if tied else 2) + decoder.layers * layer + h
    heads = int(config.get("num_attention_heads") or config.get("n_head") or 0)
    keys = int(config.get("num_key_value_heads") or heads)
    context = int(config.get("max_position_embeddings") or config.get("n_positions") or 0)
    return ModelShape(parameters, decoder, vocabulary, max(embedding, h * decoder.inner), tied, heads, keys, context)


def _tensor_sizes(policy: Path) -> list[int]:
    """Numbers of elements of all tensors in the checkpoint's safetensors files, from their heads alone."""
    sizes = []
    for file in _files(policy):
        with file.open("rb") as f:
            length = int.from_bytes(f.read(8), "little")
            header = json.loads(f.read(length) if length < file.stat().st_size else b"")
        sizes += [math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__"]
    return sizes


def _files(policy: Path) -> list[Path]:
    """Files that transformers reads: a checkpoint may hold the same weights once more, under another name."""
    if (one := policy / "model.safetensors").is_file():
        return [one]
    index = policy / "model.safetensors.index.json"
    names = json.loads(index.read_text())["weight_map"].values() if index.is_file() else ()
    named = sorted({policy / name for name in names})
    return named if named and all(file.is_file() for file in named) else sorted(policy.glob("model*.safetensors"))
