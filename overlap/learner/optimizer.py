"""The learning rate of each optimizer step, and the step itself: for policy and critic."""

from __future__ import annotations

import math
from typing import assert_never

from overlap.config.learn import LearnConfig
from overlap.core.errors import LearnerError
from overlap.learner.zero.backend import ZeroModel


def learning_rate(update: int, learn: LearnConfig, total: int) -> float:
    """Rate of optimizer step ``update`` (from 0) of ``total``: linear warm-up to ``lr``, then the schedule.

    The warm-up's step i has (i + 1) / warmup of the rate; linear and cosine reach 0 one step after the last.
    """
    if update < learn.warmup_steps:
        return learn.lr * (update + 1) / learn.warmup_steps
    span = max(1, total - learn.warmup_steps)
    done = min(1.0, (update - learn.warmup_steps) / span)
    match learn.schedule:
        case "constant":
            return learn.lr
        case "linear":
            return learn.lr * (1.0 - done)
        case "cosine":
            return learn.lr * (0.5 * (1.0 + math.cos(math.pi * done)))
        case _:
            assert_never(learn.schedule)


def take_step(model: ZeroModel, rate: float, field: str) -> float:
    """``ZeroModel.step``. Raises LearnerError, with the rate's ``field``, for a gradient norm that is no number."""
    norm = model.step(rate)
    if not math.isfinite(norm):
        raise LearnerError(f"the gradient norm is {norm}: lower {field}")
    return norm
