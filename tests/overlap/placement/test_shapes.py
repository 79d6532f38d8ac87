"""The sizes of a model, from its configuration and from the heads of its files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from shapes import LARGE, R1_DISTILL_14B, SMALL

from overlap.placement import read_shape, shape_of


def test_parameters_follow_from_the_configuration():
    assert LARGE.parameters == pytest.approx(14.77e9, rel=1e-3)
    assert SMALL.parameters == pytest.approx(1.777e9, rel=1e-3)
    assert LARGE.trunk == LARGE.parameters - 152064 * 5120
    assert shape_of(R1_DISTILL_14B | {"tie_word_embeddings": True}).parameters == LARGE.trunk


@pytest.mark.parametrize(
    ("config", "layers", "kv_width"),
    [
        ({"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 64}, 2, 64),
        ({"num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 32, "hidden_size": 64}, 2, 256),
        ({"n_layer": 3, "n_head": 4, "n_embd": 64}, 3, 128),
        (
            {"vision_config": {}, "text_config": {"num_hidden_layers": 5, "num_attention_heads": 1, "head_dim": 8}},
            5,
            16,
        ),
        ({}, 0, 0),
    ],
)
def test_the_shape_of_any_family_is_read_without_an_error(tmp_path: Path, config: dict, layers: int, kv_width: int):
    (tmp_path / "config.json").write_text(json.dumps(config))
    shape = read_shape(tmp_path)
    assert (shape.decoder.layers, shape.kv_width) == (layers, kv_width)


@pytest.mark.parametrize("tied", [True, False])
def test_what_the_files_hold_counts(tmp_path: Path, tied: bool):
    config = {"num_hidden_layers": 1, "hidden_size": 8, "vocab_size": 100, "tie_word_embeddings": not tied}
    (tmp_path / "config.json").write_text(json.dumps(config))
    shapes = {"embedding": [100, 8], "bias": [7]} | ({} if tied else {"head": [100, 8]})
    for number, (name, shape) in enumerate(shapes.items()):
        head = json.dumps({"__metadata__": {}, name: {"shape": shape}}).encode()
        (tmp_path / f"model-{number}.safetensors").write_bytes(len(head).to_bytes(8, "little") + head)
    found = read_shape(tmp_path)
    assert (found.parameters, found.largest, found.tied) == (807 if tied else 1607, 800, tied)
    assert found.trunk == 807


@pytest.mark.parametrize(("parts", "evenly"), [(1, True), (2, True), (8, True), (3, False), (16, False)])
def test_heads_are_shared_evenly_or_not_at_all(parts: int, evenly: bool):
    assert LARGE.divides(parts) == evenly
