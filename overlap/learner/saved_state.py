"""A saved learner state: the file beside DeepSpeed's, enough to refuse a state that does not fit; and a Hugging Face
checkpoint out of it, without an engine, a process group or a GPU.

Where adapters were trained, these are all that a state holds.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from overlap.config.fields import Config
from overlap.core.errors import ConfigError, RunDirError, one_line, refusing
from overlap.learner.lora import FOLDER, from_state, save_adapter
from overlap.policy.check import policy_digest
from overlap.weights.full import LowRank

_FILE = "learner.json"
TAG = "deepspeed"
"""Folder of the policy's shards in a saved state."""
CRITIC_TAG = "critic"
"""The same of the critic, which also has its head there."""
_PREFIX = "policy."  # the model that is trained holds the policy and its head, which share their weights
_WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt", ".pth", ".index.json", ".msgpack", ".h5", ".onnx")


@dataclass(frozen=True, slots=True)
class LearnerState:
    """Policy version, and optimizer steps taken (they set the learning rate). ``ranks`` and ``zero_stage`` say how the
    files are sharded; other ranks and stages can read them, too. ``critic_updates``: optimizer steps of the critic,
    None without one. With a ``lora_rank`` the state has adapters instead of weights; these are in the checkpoint whose
    digest is ``base``.
    """

    version: int
    updates: int
    ranks: int
    zero_stage: int
    critic_updates: int | None = None
    lora_rank: int = 0
    base: str = ""

    def fits(self, cfg: Config) -> bool:
        """True when the files are sharded as those of a run by ``cfg``."""
        return (self.ranks, self.zero_stage) == (cfg.learn.ranks, cfg.learn.zero_stage)


def write_state(folder: Path, cfg: Config, state: LearnerState) -> None:
    """Write beside the shards in ``folder``. Raises OSError."""
    (folder / _FILE).write_text(json.dumps({"dtype": cfg.dtype, **asdict(state)}), encoding="utf-8")


def copy_beside(policy: Path, folder: Path) -> None:
    """Copy what a checkpoint has besides weights (tokenizer, chat template), unless it is there. Raises OSError."""
    for file in policy.iterdir():
        if file.is_file() and not file.name.endswith(_WEIGHTS) and not (folder / file.name).exists():
            shutil.copyfile(file, folder / file.name)


def read_state(folder: Path, cfg: Config) -> LearnerState:
    """The learner state in ``folder``. Raises ConfigError where there is none, or where its number type, adapters or
    critic are not those of a run by ``cfg``.
    """
    fault, unreadable = "has no learner state that can be read", (OSError, ValueError, KeyError, TypeError)
    with refusing("checkpoint", str(folder), fault, "choose another one", unreadable):
        found = json.loads((folder / _FILE).read_text(encoding="utf-8"))
        dtype = found.pop("dtype")
        state = LearnerState(**found)
    if dtype != cfg.dtype:
        way_out = f"was written with model.dtype={dtype}: resume with that, this run has {cfg.dtype}"
        raise ConfigError("checkpoint", str(folder), way_out)
    if state.lora_rank != cfg.learn.lora_rank:
        way_out = f"was written with learn.lora_rank={state.lora_rank}: resume with that, this run has"
        raise ConfigError("checkpoint", str(folder), f"{way_out} {cfg.learn.lora_rank}")
    has_critic = state.critic_updates is not None
    if (cfg.learn.advantage == "gae") != has_critic:
        has = "has a critic: resume with" if has_critic else "has no critic: resume without"
        raise ConfigError("checkpoint", str(folder), f"{has} learn.advantage=gae, this run has {cfg.learn.advantage}")
    return state


def check_base(folder: Path, state: LearnerState, policy: Path) -> None:
    """Raise ConfigError where adapters of ``state``, which is in ``folder``, were trained on another ``policy``."""
    if state.lora_rank and state.base != policy_digest(policy):
        way_out = f"the adapters in {folder} were trained on another policy: name the one that the run started from"
        raise ConfigError("model.policy", str(policy), way_out)


def export_policy(state: Path, cfg: Config, policy: Path, folder: Path) -> int:
    """Write the policy of the learner state ``state`` into ``folder``, new; returns its version.

    ``cfg`` is the configuration of the run, ``policy`` the checkpoint that it began with, for everything but weights.
    Raises ConfigError for a state that is none or of another policy, RunDirError when the disk is full.
    """
    found = read_state(state, cfg)
    check_base(state, found, policy)
    with _no_progress_bars():
        _write(state, found, cfg, policy, folder)
    return found.version


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    """Inside, transformers shows none."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _write(state: Path, found: LearnerState, cfg: Config, policy: Path, folder: Path) -> None:
    unreadable = (OSError, RuntimeError, ValueError, KeyError, EOFError)
    with refusing("checkpoint", str(state), "cannot be read", "choose another step", unreadable):
        tensors = _tensors(state, found.zero_stage, cfg)
        adapters = from_state(tensors) if found.lora_rank else {}
        model, tensors = _merged(adapters, policy) if adapters else _whole(tensors, policy)
    try:
        folder.mkdir(parents=True)
        model.save_pretrained(folder, state_dict=tensors)
        copy_beside(policy, folder)
        if adapters:
            save_adapter(adapters, policy, folder / FOLDER)
    except (OSError, RuntimeError) as exc:  # torch's writer turns a full disk into a RuntimeError
        reason = getattr(exc, "strerror", None) or one_line(exc, 200)
        raise RunDirError(f"{folder}: cannot be written: {reason}; free disk space or choose another place") from exc


def _tensors(state: Path, zero_stage: int, cfg: Config) -> dict[str, Any]:
    """Full tensors of the policy by their names in it, in its number type."""
    import torch

    from overlap.learner.zero.checkpoints import saved_tensors

    found = saved_tensors(state / TAG, zero_stage)
    dtype = getattr(torch, cfg.dtype)
    return {n.removeprefix(_PREFIX): t.to(dtype).clone() for n, t in found.items() if n.startswith(_PREFIX)}


def _whole(tensors: dict[str, Any], policy: Path) -> tuple[Any, dict[str, Any]]:
    """The policy's architecture with these weights, and the tensors that it saves: of tied ones the first."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    dtype = next(iter(tensors.values())).dtype
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(policy), dtype=dtype)
    model.load_state_dict(tensors, strict=True, assign=True)
    model.tie_weights()
    tied = dict(model.named_parameters(remove_duplicate=False)).keys() - dict(model.named_parameters()).keys()
    return model, {name: tensor for name, tensor in tensors.items() if name not in tied}


def _merged(adapters: dict[str, LowRank], policy: Path) -> tuple[Any, dict[str, Any]]:
    """The checkpoint that the run began with, with these adapters in its weights, and its tensors."""
    from transformers import AutoModelForCausalLM

    dtype = next(iter(adapters.values())).down.dtype
    model = AutoModelForCausalLM.from_pretrained(policy, dtype=dtype)
    tensors = {name: p.detach() for name, p in model.named_parameters()}
    for name, adapter in adapters.items():
        tensors[name].copy_(adapter.added_to(tensors[name]))
    return model, tensors
