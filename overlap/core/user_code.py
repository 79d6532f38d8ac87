"""The fault of the user's code, in one line, with the place in that code: in no library, and not in this package; and
values that a reward function returned instead of a reward.

an exception's traceback, a function, what faulthandler wrote of a process that hangs ──▶ "... (rewards.py:12)"
"""

from __future__ import annotations

import inspect
import numbers
import os
import re
import sysconfig
import traceback
from collections.abc import Callable, Iterable
from itertools import starmap
from pathlib import Path
from typing import Any, Final

_LIBRARIES: Final = tuple(
    f"{path}{os.sep}"
    for path in {
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        os.path.dirname(os.__file__),
        str(Path(__file__).resolve().parents[1]),
        str(Path(__file__).resolve().parents[2] / "sandbox"),
    }
)
REWARD_MAX: Final = 1e24
"""Largest size of a reward: squares of it, and products with a ratio in float32, are finite."""
_DUMPED: Final = re.compile(r'^  File "(.*)", line (\d+) in ', re.MULTILINE)


class RewardFault(Exception):
    """The user's reward function raised, or returned something else than a finite number or None."""


def checked_reward(value: Any) -> float | None:
    """The reward as a float; raises RewardFault unless it is a finite number or None."""
    if value is None:
        return None
    if not isinstance(value, numbers.Real):
        raise RewardFault(f"returned {shortened(value)} of type {type(value).__name__}; return a float or None")
    size: Any = abs(value)
    if not size <= REWARD_MAX:  # nor is NaN
        allowed = f"return a finite number, of at most {REWARD_MAX:g}, or None to mask the sample"
        raise RewardFault(f"returned {shortened(value, str)}; {allowed}")
    return float(value)


def method_name(task: object, method: str) -> str:
    """Name of a task's method in messages: of a reward function that was made a task, the function's name."""
    called: dict[str, str] = getattr(task, "called", {})
    return called.get(method, f"{type(task).__qualname__}.{method}")


def described_error(error: BaseException) -> str:
    """An exception of the user's code in one line, with the line of theirs where it was raised."""
    if isinstance(error, RewardFault):
        return str(error)
    frames = reversed(traceback.extract_tb(error.__traceback__))
    where = _choose((frame.filename, frame.lineno or 0) for frame in frames)
    return f"raised {type(error).__name__}: {shortened(error, str)}" + (f" ({where})" if where else "")


def shortened(value: object, show: Callable[[object], object] = repr) -> str:
    """A value of the user's in one line, whatever its own ``show`` does."""
    try:
        text = " ".join(str(show(value)).split())
    except Exception as error:  # a repr of the user's own
        text = f"<{type(value).__name__} without a text: {type(error).__name__}>"
    return text if len(text) <= 200 else f"{text[:199]}…"


def line_of_dump(text: str) -> str:
    """The innermost line of the user's in what ``faulthandler`` writes, most recent call first; "" for none."""
    return _choose((path, int(line)) for path, line in _DUMPED.findall(text))


def _choose(frames: Iterable[tuple[str, int]]) -> str:
    """The first line of the user's, ``frames`` being innermost first; one of a library where there is none of theirs,
    "" for no line at all.
    """
    known = list(frames)
    own = [frame for frame in known if not frame[0].startswith((*_LIBRARIES, "<frozen "))]
    return next(starmap(_shown, own or known), "")


def line_of(function: Any) -> str:
    """Place where a function or class of the user is defined ("rewards.py:12"); "" where it is not known."""
    try:
        found = inspect.unwrap(getattr(function, "__func__", function))
        path = inspect.getsourcefile(found) or ""
        code = getattr(found, "__code__", None)
        return _shown(path, code.co_firstlineno if code is not None else inspect.getsourcelines(found)[1])
    except (OSError, TypeError, ValueError):  # made by exec, or in C
        return ""


def misfit(function: Any, arguments: Iterable[object]) -> str:
    """The reason why a function of the user's cannot be called with these arguments; "" where it can."""
    try:
        inspect.signature(function).bind(*arguments)
    except (TypeError, ValueError) as error:
        return str(error)
    return ""


def _shown(path: str, line: int) -> str:
    beside = os.path.relpath(path) if os.path.isabs(path) else path
    return f"{path if beside.startswith('..') else beside}:{line}"
