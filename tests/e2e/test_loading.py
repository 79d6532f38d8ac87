"""Under ZeRO-3 no rank ever holds a whole model, and all else is as it is with whole ones, bit for bit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from checkpoints import edited
from partition_ranks import partition_ranks
from safetensors.torch import load_file, save_file
from tiny_policy import make_tiny_policy
from wide import wide

from overlap.weights.full import BUCKET_BYTES

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

SIZES = {
    "vocab_size": 160, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16,
}  # fmt: skip


def save(folder: Path, family: str, dtype=torch.float32, shards="5GB", **more) -> Path:
    config = getattr(transformers, f"{family}Config")(**SIZES, **more)
    torch.manual_seed(1)
    model = getattr(transformers, f"{family}ForCausalLM")(config).to(dtype)
    model.save_pretrained(folder, max_shard_size=shards)
    return folder


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory) -> Path:
    """Of every kind that transformers reads in a way of its own."""
    root = tmp_path_factory.mktemp("checkpoints")
    make_tiny_policy(root / "tied", vocab=2048)
    save(root / "untied", "Qwen2", torch.bfloat16, shards="20KB", tie_word_embeddings=False)
    assert len(list((root / "untied").glob("*.safetensors"))) > 3
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "tie_word_embeddings": False}
    save(root / "experts", "Qwen3Moe", **experts)
    assert any("experts.3" in name for name in load_file(root / "experts" / "model.safetensors"))  # joined on loading
    save(root / "window", "Mistral", tie_word_embeddings=False, sliding_window=4)

    tensors = load_file(root / "tied" / "model.safetensors")
    edited(root / "tied", root / "equal", {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()})
    less = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    edited(root / "tied", root / "prefix", dict.fromkeys(tensors) | less)
    pickled = shutil.copytree(root / "tied", root / "pickled")
    (pickled / "model.safetensors").unlink()
    torch.save(tensors, pickled / "pytorch_model.bin")
    return root


@pytest.mark.promise("loading")
@pytest.mark.parametrize("ranks", [wide(1), 2])
def test_a_model_in_partitions_is_the_whole_one_bit_for_bit(checkpoints, tmp_path, ranks):
    for found in partition_ranks(ranks, "same", checkpoints, tmp_path):
        assert len(found) == 2 * len(list(checkpoints.iterdir()))
        assert [(checkpoint, what) for checkpoint, of in found.items() for what, holds in of.items() if not holds] == []


@pytest.mark.wide
@pytest.mark.parametrize("ranks", [wide(1), 2])
def test_steps_after_it_are_those_after_a_plain_load_bit_for_bit(checkpoints, tmp_path, ranks):
    for found in partition_ranks(ranks, "steps", checkpoints / "tied", tmp_path):
        assert len(found) == 6
        assert found == {kind: [True, True] for kind in found}


@pytest.mark.wide
def test_compiled_steps_are_those_of_one_operation_after_the_other(checkpoints, tmp_path):
    (found,) = partition_ranks(1, "compiled", checkpoints / "tied", tmp_path)
    assert len(found) == 4
    for kind, (eager, compiled) in found.items():
        for one, other in zip(eager, compiled, strict=True):
            assert other == pytest.approx(one, rel=1e-3, abs=1e-5), kind


@pytest.mark.promise("loading")
def test_what_cannot_be_loaded_is_refused_in_the_same_words(checkpoints, tmp_path):
    folder = tmp_path / "faulty"
    faults = {
        "less": {"model.norm.weight": None},
        "other": {"model.norm.weight": torch.ones(63)},
        "head": {"lm_head.weight": torch.ones(2048, 64)},
        "bias": {"model.layers.0.self_attn.q_proj.bias": torch.ones(128)},
        "cut": {},
        "unheard-of": {},
    }
    for name, changes in faults.items():
        edited(checkpoints / "tied", folder / name, changes)
    with (folder / "cut" / "model.safetensors").open("r+b") as file:
        file.truncate(1000)
    (folder / "unheard-of" / "config.json").write_text('{"model_type": "unheard-of"}')
    (folder / "none").mkdir()
    (found,) = partition_ranks(1, "refused", folder, tmp_path)
    assert found.keys() == {"none", *faults}
    for ours, theirs in found.values():
        assert ours == theirs != "not refused"
    assert "1 tensors are missing from its files, such as model.norm.weight" in found["less"][0]
    assert "its config.json ties the two" in found["head"][0]
    assert "1 tensors of its files belong to no layer" in found["bias"][0]
    assert all("cannot be loaded (" in found[name][0] for name in ("other", "cut", "unheard-of", "none"))


@pytest.fixture(scope="module")
def large(tmp_path_factory) -> Path:
    """Random bfloat16 weights, 1.1 GB, each layer in a file of its own; made without ever having them all."""
    root = tmp_path_factory.mktemp("large")
    make_tiny_policy(root / "tiny", vocab=2048)
    folder = root / "large"
    config = transformers.LlamaConfig(
        vocab_size=16384, hidden_size=2048, intermediate_size=8192, num_hidden_layers=8, num_attention_heads=16,
        num_key_value_heads=4, head_dim=128, tie_word_embeddings=False, dtype="bfloat16",
    )  # fmt: skip
    config.save_pretrained(folder)
    with torch.device("meta"):
        shapes = transformers.LlamaForCausalLM(config).state_dict()
    files: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in shapes.items():
        layer = name.split(".")[2] if ".layers." in name else name
        files.setdefault(f"model-{layer}.safetensors", {})[name] = tensor
    for file, tensors in files.items():
        made = {name: (torch.randn(t.shape) * 0.02).bfloat16() for name, t in tensors.items()}
        save_file(made, folder / file, metadata={"format": "pt"})
    size = sum(t.numel() * 2 for t in shapes.values())
    assert size > 1 << 30
    index = {"metadata": {"total_size": size}, "weight_map": {n: f for f, tensors in files.items() for n in tensors}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return root


@pytest.mark.wide
def test_a_rank_that_loads_has_at_most_its_part_and_one_and_a_half_buckets(large, tmp_path):
    """From files in the model's number type, which are cut as they are."""
    for seen in partition_ranks(2, "peak bfloat16", large, tmp_path):
        print(seen)
        assert seen["model"] > 1 << 30
        taken = seen["most"] - seen["before"]
        assert 0.9 * seen["model"] / 2 <= taken <= seen["model"] / 2 + 1.5 * BUCKET_BYTES
        assert seen["check"] <= 1.5 * BUCKET_BYTES
