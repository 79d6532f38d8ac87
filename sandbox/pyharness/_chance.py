"""Chance in a run: a program's is the same in every run of a case; that of a referee is a secret.

Generators that take their seed from the operating system (`secrets`, `uuid4`, `SystemRandom`) are left alone.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any, Final

_UNITS: Final = (1.0, 1e3, 1e6, 1e9)
"""Units in which a clock is read, per second."""
_NEAR_S: Final = 300.0
_now: Final = time.time


def fix_chance(seed: int) -> None:
    """Seed the generators that a program finds."""
    for generator in _generators():
        generator.seed(seed)


def hide_chance() -> None:
    """Seed them with an unknown value, also where they are seeded by a clock, which a program can read as well."""
    numbers: Any = sys.modules["random"]
    plain = numbers.Random.seed

    def seed(self: Any, a: Any = None, version: int = 2) -> None:
        plain(self, None if _is_clock(a) else a, version)

    numbers.Random.seed = seed
    numbers.seed = numbers._inst.seed
    _hide_time()
    for generator in _generators():
        generator.seed(None)


def _hide_time() -> None:
    """Let the clocks of `time` go before the program's, for a seed may be any part or text of what they return."""
    early_s = int.from_bytes(os.urandom(4), "big") >> 4
    for name in ("time", "monotonic", "perf_counter"):
        for suffix, unit in (("", 1), ("_ns", 10**9)):
            setattr(time, name + suffix, _early(getattr(time, name + suffix), early_s * unit))
    for name in ("gmtime", "localtime", "ctime"):
        setattr(time, name, _telling(getattr(time, name), time.time))
    plain = time.strftime

    def strftime(form: str, at: Any = None) -> str:
        return plain(form, at or time.localtime())

    vars(time)["strftime"] = strftime


def _telling(plain: Callable[[float], Any], clock: Callable[[], float]) -> Callable[..., Any]:
    def telling(at: float | None = None) -> Any:
        return plain(clock() if at is None else at)

    return telling


def _early(clock: Callable[[], Any], by: int) -> Callable[[], Any]:
    return lambda: clock() - by


def _generators() -> list[Any]:
    return [sys.modules[name] for name in ("random", "numpy.random") if name in sys.modules]


def _is_clock(seed: Any) -> bool:
    if type(seed) not in (int, float):
        return False
    now = _now()
    return any(abs(seed - now * unit) < _NEAR_S * unit for unit in _UNITS)
