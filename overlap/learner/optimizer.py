"""How DeepSpeed is configured and takes an optimizer step, and the learning rate of each: for policy and critic."""

from __future__ import annotations

import math
from typing import Any

import torch

from overlap.config import Config, LearnConfig
from overlap.errors import LearnerError


def learning_rate(update: int, learn: LearnConfig, total: int) -> float:
    """Rate of optimizer step ``update`` (from 0) of ``total``: linear warm-up to ``lr``, then the schedule.

    The warm-up's step i has (i + 1) / warmup of the rate; linear and cosine reach 0 one step after the last.
    """
    if update < learn.warmup_steps:
        return learn.lr * (update + 1) / learn.warmup_steps
    span = max(1, total - learn.warmup_steps)
    done = min(1.0, (update - learn.warmup_steps) / span)
    factor = {"constant": 1.0, "linear": 1.0 - done, "cosine": 0.5 * (1.0 + math.cos(math.pi * done))}
    return learn.lr * factor[learn.schedule]


def deepspeed_config(cfg: Config) -> dict[str, Any]:
    """DeepSpeed's configuration. Gradients are summed in float32 in any case, over micro-batches as over ranks."""
    bf16 = cfg.model.dtype == "bfloat16"
    made: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": cfg.learn.grad_clip,
        "bf16": {"enabled": bf16},
        "zero_optimization": {"stage": cfg.learn.zero_stage},
        "data_types": {"grad_accum_dtype": "fp32"},
        "communication_data_type": "fp32",
        "steps_per_print": 2**62,
    }
    if cfg.learn.offload == "cpu":
        pins = cfg.run.device != "cpu" and torch.cuda.is_available()
        made["zero_optimization"]["offload_optimizer"] = {"device": "cpu", "pin_memory": pins}
        made["zero_force_ds_cpu_optimizer"] = False  # torch's own, which no compiler has to make first
    return made


def partitioning(cfg: Config) -> dict[str, Any] | None:
    """DeepSpeed's configuration where parameters are partitioned from the start (ZeRO-3), else None."""
    return deepspeed_config(cfg) if cfg.learn.zero_stage == 3 else None


def take_step(engine: Any, rate: float, field: str) -> float:
    """Take the optimizer step; returns the global gradient norm before clipping. Raises LearnerError, which names the
    ``field`` of the rate, where that is no number.
    """
    for group in engine.optimizer.param_groups:
        group["lr"] = rate
    engine.step()
    norm = float(engine.get_global_grad_norm())
    if not math.isfinite(norm):
        raise LearnerError(f"the gradient norm is {norm}: lower {field}")
    return norm
