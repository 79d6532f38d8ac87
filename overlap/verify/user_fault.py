"""What the user's reward function did wrong, in one line, with the place in their code: in no library, and not in ours.

a wrong value, an exception's traceback, what faulthandler wrote of a process that hangs ──▶ "... (rewards.py:12)"
"""

from __future__ import annotations

import math
import numbers
import os
import re
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

_LIBRARIES: Final = tuple(
    f"{path}{os.sep}"
    for path in {
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        os.path.dirname(os.__file__),
        str(Path(__file__).resolve().parents[1]),
    }
)
_DUMPED: Final = re.compile(r'^  File "(.*)", line (\d+) in ', re.MULTILINE)


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


def described_error(error: BaseException) -> str:
    """An exception of the user's code in one line, with the line of theirs where it was raised."""
    frames = reversed(traceback.extract_tb(error.__traceback__))
    where = _choose((frame.filename, frame.lineno or 0) for frame in frames)
    return f"raised {type(error).__name__}: {shortened(error, str)}" + (f" ({where})" if where else "")


def shortened(value: object, show: Any = repr) -> str:
    """A value of the user's in one line, whatever its own ``show`` does."""
    try:
        text = " ".join(str(show(value)).split())
    except Exception as error:  # a repr of the user's own
        text = f"<{type(value).__name__} without a text: {type(error).__name__}>"
    return text if len(text) <= 200 else f"{text[:199]}…"


def of_dump(text: str) -> str:
    """The innermost line of the user's in what ``faulthandler`` writes, most recent call first; "" for none."""
    return _choose((path, int(line)) for path, line in _DUMPED.findall(text))


def _choose(frames: Iterable[tuple[str, int]]) -> str:
    """The first line of the user's, ``frames`` being innermost first; one of a library where there is none of theirs,
    "" for no line at all.
    """
    known = list(frames)
    own = [frame for frame in known if not frame[0].startswith((*_LIBRARIES, "<frozen "))]
    for path, line in own or known:
        beside = os.path.relpath(path) if os.path.isabs(path) else path
        return f"{path if beside.startswith('..') else beside}:{line}"
    return ""
