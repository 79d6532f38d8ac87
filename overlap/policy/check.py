"""Contents that a checkpoint directory must have before anything is started on it: files that are whole, a model that
is known; a digest, equal wherever the checkpoint is; and the layers that adapters are beside.

Engine and learner would find the same faults, but minutes later, in other words, and one of them at a time.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from overlap.core.errors import ConfigError, refusing

FIELD = "model.policy"
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")
_ANEW = "download it anew"
_PIECES, _PIECE = 256, 4096
_SUFFIXES = (".json", ".safetensors", ".bin", ".model", ".txt", ".jinja")
_READ = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
"""Attributes of a text model's configuration that the room of the engine and the plan's figures lean on."""


def check_checkpoint(path: Path, given: str) -> Path:
    """The directory, resolved. Raises ConfigError, with the name that was given, where it cannot be a policy."""
    if not path.is_dir():
        way_out = f"no such directory: {train_first(path)}give the directory of a Hugging Face checkpoint"
        raise ConfigError(FIELD, given, way_out)
    if (path / "policy" / "config.json").is_file() and not (path / "config.json").is_file():
        raise ConfigError(FIELD, given, f"{path} is the directory of a run: give {Path(given) / 'policy'}")
    if (path / "adapter_config.json").is_file() and not (path / "config.json").is_file():
        way_out = f"{path} has adapters alone (peft): merge them into their model (merge_and_unload), or give the "
        way_out += "folder of a policy that a run has saved, which holds both"
        raise ConfigError(FIELD, given, way_out)
    for what, names in (("config", ("config.json",)), ("weights", _WEIGHTS), ("tokenizer", _TOKENIZERS)):
        if not any((path / name).is_file() for name in names):
            raise ConfigError(FIELD, given, f"{path} has no {what}: it must hold {' or '.join(names)}")
    _check_model(path, given)
    _check_weights(path, given)
    return path.resolve()


def train_first(path: Path) -> str:
    """Return how to get a policy that is missing at ``path``; "" where that is no place in which runs leave theirs."""
    ours = path.name == "policy"
    return f"a run with run.dir={path.parent} leaves it there at its end; train that first, or " if ours else ""


def _check_model(path: Path, given: str) -> None:
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

    # Whatever a foreign configuration sets off in its class.
    fault = f"{path}/config.json is of no model that transformers knows"
    with refusing(FIELD, given, fault, "give another policy", (Exception,)):
        config = AutoConfig.from_pretrained(path, trust_remote_code=False)
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        way_out = f"a {config.model_type!r} model is no causal language model: give one that continues text"
        raise ConfigError(FIELD, given, way_out)
    text: Any = config.get_text_config()
    if missing := [name for name in _READ if not isinstance(getattr(text, name, None), int)]:
        way_out = f"the configuration of a {config.model_type!r} model has no {missing[0]}: give a family like Llama's"
        raise ConfigError(FIELD, given, way_out)


def _check_weights(path: Path, given: str) -> None:
    """The first set of weights that is there is the one that is loaded."""
    name = next(name for name in _WEIGHTS if (path / name).is_file())
    shards = [name]
    if name.endswith(".index.json"):
        errors = OSError, ValueError, KeyError, TypeError, AttributeError
        with refusing(FIELD, given, f"{path / name} lists no weights", _ANEW, errors):
            shards = sorted(set(json.loads((path / name).read_text(encoding="utf-8"))["weight_map"].values()))
    for shard in shards:
        _check_shard(path / shard, given)


def _check_shard(file: Path, given: str) -> None:
    """Raise ConfigError unless these weights can be read. The header of a safetensors file gives its length."""
    from safetensors import SafetensorError, safe_open

    if not file.is_file():
        raise ConfigError(FIELD, given, f"{file} is missing: {_ANEW}")
    size = file.stat().st_size
    if file.suffix == ".safetensors":
        fault = f"{file} is no whole safetensors file of {size} bytes"
        with (
            refusing(FIELD, given, fault, _ANEW, (OSError, SafetensorError)),
            safe_open(file, framework="np") as opened,
        ):
            if not opened.keys():
                raise ConfigError(FIELD, given, f"{file} has no tensors ({size} bytes): {_ANEW}")
    elif not size:
        raise ConfigError(FIELD, given, f"{file} is empty: {_ANEW}")


def policy_digest(policy: Path) -> str:
    """Hex digest of the files of a checkpoint: names, sizes, and ``_PIECES`` pieces at even steps of each.

    Another training step changes nearly all weights, so it is not needed to read all of them. Raises ConfigError.
    """
    digest = hashlib.sha256()
    with refusing(FIELD, str(policy), "cannot be read", "give another policy"):
        for file in sorted(path for path in policy.iterdir() if path.suffix in _SUFFIXES):
            with file.open("rb") as opened:
                size = os.fstat(opened.fileno()).st_size
                digest.update(f"{file.name}:{size};".encode())
                for at in _starts(size):
                    opened.seek(at)
                    digest.update(opened.read(_PIECE))
    return digest.hexdigest()[:16]


def _starts(size: int) -> list[int]:
    """Offsets at which the pieces begin; they cover a small file whole."""
    if size <= _PIECES * _PIECE:
        return list(range(0, size, _PIECE))
    return [piece * (size - _PIECE) // (_PIECES - 1) for piece in range(_PIECES)]


def adapted_layers(policy: Path) -> list[str]:
    """Last parts of the names of the linear layers in the decoder of a checkpoint, of which ``config.json`` is read."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        return linear_layers(AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(policy)))


def linear_layers(policy: Any) -> list[str]:
    """The same of a Hugging Face model. Its output layer is none of them."""
    from torch import nn

    modules = policy.base_model.named_modules()
    return sorted({name.rpartition(".")[2] for name, module in modules if isinstance(module, nn.Linear)})
