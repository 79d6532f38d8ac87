"""Chance in a run: a program's is the same in every run of a case; that of who decides about programs is a secret.

Generators that take their seed from the operating system (`secrets`, `uuid4`, `SystemRandom`) are left alone.
"""

from __future__ import annotations

import sys
import time
from typing import Any, Final

_UNITS: Final = (1.0, 1e3, 1e6, 1e9)
"""In which a clock is read, per second."""
_NEAR_S: Final = 300.0


def fix_chance(seed: int) -> None:
    """Seed the generators that a program finds."""
    for generator in _generators():
        generator.seed(seed)


def hide_chance() -> None:
    """Seed them with what nobody knows, also where they are seeded by the clock, which a program can read as well."""
    numbers: Any = sys.modules["random"]
    plain = numbers.Random.seed

    def seed(self: Any, a: Any = None, version: int = 2) -> None:
        plain(self, None if _is_clock(a) else a, version)

    numbers.Random.seed = seed
    numbers.seed = numbers._inst.seed
    for generator in _generators():
        generator.seed(None)


def _generators() -> list[Any]:
    return [sys.modules[name] for name in ("random", "numpy.random") if name in sys.modules]


def _is_clock(seed: Any) -> bool:
    if type(seed) not in (int, float):
        return False
    now = time.time()
    return any(abs(seed - now * unit) < _NEAR_S * unit for unit in _UNITS)
