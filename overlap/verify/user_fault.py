"""Faults of the user's reward function: values that it returned instead of a reward."""

from __future__ import annotations

import math
import numbers

from overlap.core import shortened

REWARD_MAX = 1e24
"""Largest size of a reward: squares of it, and products with a ratio in float32, are finite."""


def method_name(task: object, method: str) -> str:
    """Name of a task's method in messages: of a reward function that was made a task, the function's name."""
    called: dict[str, str] = getattr(task, "called", {})
    return called.get(method, f"{type(task).__qualname__}.{method}")


class RewardFault(Exception):
    """The user's reward function raised, or returned something else than a finite number or None."""


def checked_reward(value: object) -> float | None:
    """The reward as a float; raises RewardFault unless it is a finite number or None."""
    if value is None:
        return None
    if not isinstance(value, numbers.Real):
        raise RewardFault(f"returned {shortened(value)} of type {type(value).__name__}; return a float or None")
    try:
        number = float(value)
    except OverflowError:  # an integer, or a fraction
        number = math.inf
    if not math.isfinite(number):
        raise RewardFault(f"returned {number}; return a finite number, or None to mask the sample")
    if abs(number) > REWARD_MAX:
        raise RewardFault(f"returned {number}; return a number of at most {REWARD_MAX:g}, or None to mask the sample")
    return number
