"""Policies: names to checkpoint directories, the cache of the converted one, and the tiny one for tests."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from places import ROOT
from tiny_policy import make_tiny_policy

from overlap.core.errors import ConfigError
from overlap.policy import resolve as policy
from overlap.policy.check import policy_digest
from overlap.policy.resolve import DEFAULT_POLICY, policies_dir, resolve_config, resolve_policy
from overlap.process.atomic import partial_path


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_policy(tmp_path_factory.mktemp("policy") / "tiny")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OVERLAP_CACHE", str(tmp_path))
    return tmp_path


@pytest.fixture
def conversions(cache: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Stands in for the conversion: writes a small file, and lists the folders that it was asked to fill."""
    asked: list[Path] = []

    def convert(gguf_path: Path, folder: Path) -> None:
        asked.append(folder)
        (folder / "model.safetensors").write_bytes(b"weights of " + gguf_path.name.encode())
        (folder / "config.json").write_text("{}")

    monkeypatch.setattr(policy, "convert_gguf", convert)
    monkeypatch.setattr(policy, "_shipped_gguf", lambda: (Path("model.gguf"), "1.0"))
    return asked


def cached_entries() -> list[str]:
    """What lies in the cache, without the lock files."""
    return sorted(path.name for path in policies_dir().iterdir() if path.suffix != ".lock")


# --- names ----------------------------------------------------------------------------------------------


def changed(**fields: object) -> Callable[[Path], None]:
    """Writes these fields into a checkpoint's configuration; None takes one out."""

    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text()) | fields
        (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))

    return change


def cut(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])


def written(weights: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / "model.safetensors").write_bytes(weights)


def indexed(shards: object) -> Callable[[Path], None]:
    def index(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors.index.json").write_text(json.dumps(shards))

    return index


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (changed(model_type="a-new-one"), "of no model that transformers knows"),
        (changed(model_type="t5", architectures=["T5ForConditionalGeneration"]), "no causal language model"),
        (changed(model_type="mamba", num_attention_heads=None), "has no num_attention_heads"),
        (cut, "is no whole safetensors file"),
        (written(b"version https://git-lfs.github.com/spec/v1\n"), "is no whole safetensors file"),
        (written((2).to_bytes(8, "little") + b"{}"), "has no tensors"),
        (indexed({"weight_map": {"a": "model-00001-of-00002.safetensors"}}), "00001-of-00002.safetensors is missing"),
        (indexed([]), "lists no weights"),
    ],
)
def test_a_checkpoint_that_engine_or_learner_could_not_read_is_refused_at_once(
    tiny: Path, tmp_path: Path, spoil: Callable[[Path], object], reason: str
) -> None:
    folder = shutil.copytree(tiny, tmp_path / "spoilt")
    spoil(folder)
    with pytest.raises(ConfigError, match=reason) as caught:
        resolve_policy(str(folder))
    assert caught.value.field == "model.policy"
    assert "\n" not in str(caught.value)


def test_families_that_call_their_sizes_otherwise_are_taken(tiny: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny, tmp_path / "gpt2")
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 2}))
    assert resolve_policy(str(folder)) == folder


@pytest.mark.parametrize(
    ("files", "says"),
    [
        (["model.safetensors", "tokenizer.json"], "has no config: it must hold config.json"),
        (["config.json", "tokenizer.json"], "has no weights: it must hold model.safetensors"),
        (["config.json", "model.safetensors"], "has no tokenizer: it must hold tokenizer.json"),
        (["adapter_config.json"], "has adapters alone .*merge_and_unload"),
    ],
)
def test_a_local_directory_that_lacks_a_part_is_refused_by_name(tmp_path: Path, files: list[str], says: str) -> None:
    for name in files:
        (tmp_path / name).touch()
    with pytest.raises(ConfigError, match=f"model.policy=.* {says}"):
        resolve_policy(str(tmp_path))


@pytest.mark.parametrize("name", ["/no/such/policy", "./no-such-policy", "~/no-such-policy", "three/part/name"])
def test_what_is_no_hub_id_is_never_asked_of_the_hub(name: str) -> None:
    says = "a checkpoint directory or a hub id" if name == "three/part/name" else "no such directory"
    with pytest.raises(ConfigError, match=says):
        resolve_policy(name)


def test_of_a_hub_id_whose_sizes_alone_are_wanted_nothing_but_its_configuration_is_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    asked = []
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *a, **k: asked.append((a, k)) or str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert resolve_config("owner/name") == tmp_path
    assert asked[0][1]["allow_patterns"] == ["config.json"]
    (tmp_path / "owner" / "name").mkdir(parents=True)
    (tmp_path / "owner" / "name" / "config.json").touch()
    assert resolve_config("owner/name") == Path("owner/name")  # a directory comes first, as everywhere
    assert len(asked) == 1


def test_a_hub_id_out_of_reach_is_one_line_with_a_way_out(tmp_path: Path) -> None:
    code = "from overlap.policy.resolve import resolve_policy; resolve_policy('nobody/no-such-policy')"
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60
    )
    assert result.stderr.splitlines()[-1] == (
        "overlap.core.errors.ConfigError: model.policy='nobody/no-such-policy': there is no such directory, "
        "it is not in the local cache, "
        "and the hub cannot be reached: download it first, or give a directory"
    )


def test_a_missing_package_of_the_default_policy_names_the_repair(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "_PACKAGE", "no-such-package")
    with pytest.raises(ConfigError, match=r"no-such-package .* is missing .*; run scripts/setup\.sh"):
        resolve_policy(DEFAULT_POLICY)


# --- the cache ------------------------------------------------------------------------------------------


def test_the_default_policy_is_converted_once(conversions: list[Path]) -> None:
    first = resolve_policy(DEFAULT_POLICY)
    assert resolve_policy(DEFAULT_POLICY.upper()) == first
    assert len(conversions) == 1
    assert cached_entries() == [first.name]


BREAKS: list[Callable[[Path], object]] = [
    lambda entry: (entry / "model.safetensors").write_bytes(b"W" + (entry / "model.safetensors").read_bytes()[1:]),
    lambda entry: (entry / "config.json").unlink(),
    lambda entry: (entry / "manifest.json").write_text('{"config.json": [2'),
    lambda entry: (entry / "manifest.json").write_text("{}"),
]


@pytest.mark.parametrize("break_it", BREAKS)
def test_a_broken_entry_is_made_anew_and_said_in_one_line(
    break_it: Callable[[Path], object], conversions: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    entry = resolve_policy(DEFAULT_POLICY)
    break_it(entry)
    caplog.clear()
    assert resolve_policy(DEFAULT_POLICY) == entry
    assert len(conversions) == 2
    assert (entry / "model.safetensors").read_bytes() == b"weights of model.gguf"
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert "is broken" in record.message
    assert "\n" not in record.message


def test_a_conversion_that_dies_leaves_nothing_behind(conversions: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def die(gguf_path: Path, folder: Path) -> None:
        (folder / "model.safetensors").touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(policy, "convert_gguf", die)
    with pytest.raises(ConfigError, match=r"OVERLAP_CACHE=.*No space left on device.*set OVERLAP_CACHE"):
        resolve_policy(DEFAULT_POLICY)
    assert cached_entries() == []


def test_what_a_killed_conversion_left_is_removed_by_the_next(conversions: list[Path]) -> None:
    leftover = partial_path(policies_dir() / f"{DEFAULT_POLICY}-1.0-{policy._CONVERSION}")
    leftover.mkdir(parents=True)
    (leftover / "model.safetensors").touch()
    entry = resolve_policy(DEFAULT_POLICY)
    assert cached_entries() == [entry.name]


def test_a_lock_held_by_another_process_ends_the_wait_in_time(
    conversions: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "_LOCK_SECONDS", 0.0)
    lock = policies_dir() / f".{DEFAULT_POLICY}-1.0-{policy._CONVERSION}.lock"
    lock.parent.mkdir(parents=True)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match=r"lock.*could not be acquired"):
            resolve_policy(DEFAULT_POLICY)


# --- what is in a checkpoint ----------------------------------------------------------------------------


def digest_of(folder: Path, weights: bytes, config: str = "{}") -> str:
    folder.mkdir()
    (folder / "config.json").write_text(config)
    (folder / "model.safetensors").write_bytes(weights)
    return policy_digest(folder)


def test_a_copy_is_the_same_policy_and_other_weights_or_settings_are_another(tmp_path: Path) -> None:
    small, large = b"\1" * 1000, os.urandom(3 << 20)
    assert digest_of(tmp_path / "a", small) == digest_of(tmp_path / "b", small)
    assert digest_of(tmp_path / "c", small[:-1] + b"\2") != policy_digest(tmp_path / "a")
    assert digest_of(tmp_path / "d", small, '{"x": 1}') != policy_digest(tmp_path / "a")
    assert digest_of(tmp_path / "e", large) == digest_of(tmp_path / "f", large)
    trained = bytes(byte ^ 1 for byte in large)
    assert digest_of(tmp_path / "g", trained) != policy_digest(tmp_path / "e")
    with pytest.raises(ConfigError, match="cannot be read"):
        policy_digest(tmp_path / "missing")


@pytest.mark.e2e
def test_the_default_policy_answers_in_sense_and_splits_digits(cache: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = resolve_policy(DEFAULT_POLICY)
    tokenizer = AutoTokenizer.from_pretrained(path)
    assert tokenizer.tokenize("in 2024   7") == ["in", "Ġ", "2", "0", "2", "4", "ĠĠĠ", "7"]
    model = AutoModelForCausalLM.from_pretrained(path)
    assert (model.dtype, sum(weight.numel() for weight in model.parameters())) == (torch.bfloat16, 134_515_008)
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True, return_tensors="pt")
    answer = model.generate(**prompt, max_new_tokens=12, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert tokenizer.decode(answer) == "The capital of France is Paris.<|im_end|>"
