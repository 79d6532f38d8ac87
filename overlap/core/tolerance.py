"""Rewards that are the same but for rounding.

A share such as 0.1 + 0.2 differs from 0.3 by 5.6e-17, and rewards that come from float32 by 1e-7 of their size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

RELATIVE, ABSOLUTE = 1e-6, 1e-9
"""Two numbers are the same up to this share of the larger one, and near 0 up to ``ABSOLUTE``."""


def equal_rewards(rewards: Sequence[float]) -> bool:
    """True when rewards [K] are the same, or none are given; divided by such a deviation, rounding errors would get
    advantages of size 1.
    """
    return not rewards or _same(max(rewards), min(rewards))


def reaches(reward: float, bound: float) -> bool:
    """True when ``reward`` is ``bound`` or more."""
    return reward >= bound or _same(reward, bound)


def _same(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
