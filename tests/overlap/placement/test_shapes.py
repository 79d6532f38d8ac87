"""The sizes of a model, from its configuration and from the heads of its files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from shapes import LARGE, R1_DISTILL_14B, SMALL

from overlap.core.errors import ConfigError
from overlap.placement.shapes import read_shape, shape_of


def test_parameters_follow_from_the_configuration():
    assert LARGE.parameters == pytest.approx(14.77e9, rel=1e-3)
    assert SMALL.parameters == pytest.approx(1.777e9, rel=1e-3)
    assert LARGE.trunk == LARGE.parameters - 152064 * 5120
    assert shape_of(R1_DISTILL_14B | {"tie_word_embeddings": True}).parameters == LARGE.trunk


@pytest.mark.parametrize(
    ("config", "layers", "keys"),
    [
        ({"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 64}, 2, 32),
        ({"num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 32, "hidden_size": 64}, 2, 128),
        ({"n_layer": 3, "n_head": 4, "n_embd": 64}, 3, 64),
        (
            {"vision_config": {}, "text_config": {"num_hidden_layers": 5, "num_attention_heads": 1, "head_dim": 8}},
            5,
            8,
        ),
        ({}, 0, 0),
    ],
)
def test_the_shape_of_any_family_is_read_without_an_error(tmp_path: Path, config: dict, layers: int, keys: int):
    (tmp_path / "config.json").write_text(json.dumps(config))
    shape = read_shape(tmp_path)
    assert (shape.decoder.layers, shape.decoder.keys) == (layers, keys)


def write_model(folder: Path, files: dict[str, dict[str, list[int]]], **config: Any) -> Path:
    """A checkpoint with these safetensors files, each with its tensors' shapes."""
    sizes = {"num_hidden_layers": 1, "hidden_size": 8, "vocab_size": 100, "tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(sizes | config))
    for name, shapes in files.items():
        head = json.dumps({"__metadata__": {}} | {key: {"shape": shape} for key, shape in shapes.items()}).encode()
        (folder / name).write_bytes(len(head).to_bytes(8, "little") + head)
    return folder


@pytest.mark.parametrize("tied", [True, False])
def test_what_the_files_hold_counts(tmp_path: Path, tied: bool):
    files = {"model-0.safetensors": {"embedding": [100, 8]}, "model-1.safetensors": {"bias": [7]}}
    files |= {} if tied else {"model-2.safetensors": {"head": [100, 8]}}
    found = read_shape(write_model(tmp_path, files, tie_word_embeddings=not tied))
    assert (found.parameters, found.largest, found.tied) == (807 if tied else 1607, 800, tied)
    assert found.trunk == 807


def test_weights_that_are_there_twice_count_once(tmp_path: Path):
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    parts = {names[0]: {"a": [100, 8]}, names[1]: {"b": [7]}}
    write_model(tmp_path, {"consolidated.safetensors": {"a": [100, 8], "b": [7]}, **parts})
    assert read_shape(tmp_path).parameters == 807
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "gone.safetensors"}}))
    assert read_shape(tmp_path).parameters == 807
    index.write_text(json.dumps({"weight_map": {"a": names[0], "b": names[1]}}))
    assert read_shape(write_model(tmp_path, {"model-old.safetensors": {"a": [100, 8]}})).parameters == 807
    assert read_shape(write_model(tmp_path, {"model.safetensors": {"a": [100, 8]}})).parameters == 800


@pytest.mark.parametrize("config", ["{nope", "[1]", '{"vocab_size": "many"}', "\udcff"])
def test_a_configuration_that_cannot_be_read_is_refused(tmp_path: Path, config: str):
    (tmp_path / "config.json").write_bytes(config.encode("utf-8", "surrogateescape"))
    with pytest.raises(ConfigError, match="its files say nothing of its sizes"):
        read_shape(tmp_path)


@pytest.mark.parametrize(
    "content", [b"", b"\xff" * 9, (2).to_bytes(8, "little") + b"{}" * 9, b"\x09" + bytes(7) + b"{"]
)
def test_weights_that_are_not_whole_are_refused_or_count_nothing(tmp_path: Path, content: bytes):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(content)
    if b"{}" in content:
        assert read_shape(tmp_path).parameters == 0
        return
    with pytest.raises(ConfigError, match="download it anew"):
        read_shape(tmp_path)
