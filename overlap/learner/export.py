"""A Hugging Face checkpoint out of a saved learner state, without an engine, a process group or a GPU.

Where adapters were trained, these are all that a state holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from overlap.config.fields import Config
from overlap.core.errors import ConfigError, RunDirError, one_line
from overlap.learner.lora import FOLDER, from_state, save_adapter
from overlap.learner.saved_state import TAG, LearnerState, check_base, copy_beside, read_state
from overlap.weights.full import LowRank

_PREFIX = "policy."  # the model that is trained holds the policy and its head, which share their weights


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
    try:
        tensors = _tensors(state, found.zero_stage, cfg)
        adapters = from_state(tensors) if found.lora_rank else {}
        model, tensors = _merged(adapters, policy) if adapters else _whole(tensors, policy)
    except (OSError, RuntimeError, ValueError, KeyError, EOFError) as exc:
        reason = one_line(exc, 200)
        raise ConfigError("checkpoint", str(state), f"cannot be read ({reason}); choose another step") from exc
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
