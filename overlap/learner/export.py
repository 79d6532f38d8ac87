"""A Hugging Face checkpoint out of a saved learner state, without an engine, a process group or a GPU.

Up to ZeRO 2 the first rank's file holds the whole model in the policy's number type; with ZeRO 3 each rank holds a part
of the float32 weights, which DeepSpeed puts together. Where adapters were trained, these are all that a state holds.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from overlap.config import Config
from overlap.errors import ConfigError, RunDirError
from overlap.learner.lora import FOLDER, from_state, save_adapter
from overlap.learner.saved_state import TAG, check_base, copy_beside, read_state
from overlap.weights import LowRank

_PREFIX = "policy."  # the model that is trained holds the policy and its head, which share their weights


def export_policy(state: Path, cfg: Config, policy: Path, folder: Path) -> int:
    """Write the policy of the learner state ``state`` into ``folder``, new; returns its version.

    ``cfg`` is the configuration of the run, ``policy`` the checkpoint that it began with, for everything but weights.
    Raises ConfigError for a state that is none or of another policy, RunDirError when the disk is full.
    """
    found = read_state(state, cfg)
    version = found.version
    check_base(state, found, policy)
    try:
        tensors = _tensors(state, found.zero_stage, cfg.model.dtype)
        adapters = from_state(tensors) if found.lora_rank else {}
        if adapters:
            model, tensors = _merged(adapters, policy)
        else:
            model = _model(tensors, policy)
    except (OSError, RuntimeError, ValueError, KeyError, EOFError) as exc:
        reason = " ".join(str(exc).split())[:200]
        raise ConfigError("checkpoint", str(state), f"cannot be read ({reason}); choose another step") from exc
    try:
        folder.mkdir(parents=True)
        with _silence():  # accelerate, where transformers finds it, imports DeepSpeed
            model.save_pretrained(folder, state_dict=tensors)
        copy_beside(policy, folder)
        if adapters:
            save_adapter(adapters, policy, folder / FOLDER)
    except (OSError, RuntimeError) as exc:  # torch's writer turns a full disk into a RuntimeError
        reason = getattr(exc, "strerror", None) or " ".join(str(exc).split())[:200]
        raise RunDirError(f"{folder}: cannot be written: {reason}; free disk space or choose another place") from exc
    return version


@contextmanager
def _silence() -> Iterator[None]:
    """What libraries print within is nobody's."""
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        yield


def _tensors(state: Path, zero_stage: int, dtype_name: str) -> dict[str, Any]:
    """Full tensors of the policy by their names in it, in its number type."""
    import torch

    if zero_stage < 3:
        file = state / TAG / "mp_rank_00_model_states.pt"
        # The file is the run's own, and holds DeepSpeed's objects beside the weights.
        found = torch.load(file, map_location="cpu", weights_only=False, mmap=True)["module"]
    else:
        from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

        with _silence():
            found = get_fp32_state_dict_from_zero_checkpoint(str(state), tag=TAG)
    dtype = getattr(torch, dtype_name)
    return {n.removeprefix(_PREFIX): t.to(dtype).clone() for n, t in found.items() if n.startswith(_PREFIX)}


def _model(tensors: dict[str, Any], policy: Path) -> Any:
    """The policy's architecture with these weights; tied ones are left out of ``tensors``."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    dtype = next(iter(tensors.values())).dtype
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(policy), dtype=dtype)
    model.load_state_dict(tensors, strict=True, assign=True)
    model.tie_weights()
    tied = dict(model.named_parameters(remove_duplicate=False)).keys() - dict(model.named_parameters()).keys()
    for name in tied:
        tensors.pop(name, None)
    return model


def _merged(adapters: dict[str, LowRank], policy: Path) -> tuple[Any, dict[str, Any]]:
    """The checkpoint that the run began with, with these adapters in its weights, and its tensors."""
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    dtype = next(iter(adapters.values())).down.dtype
    model = AutoModelForCausalLM.from_pretrained(policy, dtype=dtype)
    tensors = {name: p.detach() for name, p in model.named_parameters()}
    for name, adapter in adapters.items():
        tensors[name].copy_(adapter.added_to(tensors[name]))
    return model, tensors
