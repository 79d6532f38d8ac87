"""Where in the user's code something happened: not in the library that it called, and not in ours.

Traceback of an exception, or what faulthandler wrote of a process that hangs  ──▶  "rewards.py:12"
"""

from __future__ import annotations

import os
import re
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Final

_LIBRARIES: Final = tuple(
    f"{path}{os.sep}"
    for path in {
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        os.path.dirname(os.__file__),
        str(Path(__file__).resolve().parents[1]),
    }
)
_DUMPED: Final = re.compile(r'^  File "(.*)", line (\d+) in ', re.MULTILINE)


def of_traceback(trace: TracebackType | None) -> str:
    """The innermost line of the user's; "" for no line at all."""
    return _choose((frame.filename, frame.lineno or 0) for frame in reversed(traceback.extract_tb(trace)))


def of_dump(text: str) -> str:
    """The same, of what `faulthandler` writes: most recent call first."""
    return _choose((path, int(line)) for path, line in _DUMPED.findall(text))


def _choose(frames: Iterable[tuple[str, int]]) -> str:
    """``frames``: innermost first."""
    known = list(frames)
    own = [frame for frame in known if not frame[0].startswith((*_LIBRARIES, "<frozen "))]
    for path, line in own or known:
        beside = os.path.relpath(path) if os.path.isabs(path) else path
        return f"{path if beside.startswith('..') else beside}:{line}"
    return ""
