"""What the user's reward function returned instead of a reward."""

from __future__ import annotations

import math
import numbers

from overlap.core import shortened


class RewardFault(Exception):
    """The user's reward function raised, or returned something else than a finite number or None."""


def checked_reward(value: object) -> float | None:
    """The reward as a float; raises RewardFault unless it is a finite number or None."""
    if value is None:
        return None
    if not isinstance(value, numbers.Real):
        raise RewardFault(f"returned {shortened(value)} of type {type(value).__name__}; return a float or None")
    if not math.isfinite(number := float(value)):
        raise RewardFault(f"returned {number}; return a finite number, or None to mask the sample")
    return number
