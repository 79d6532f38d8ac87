"""The parent process of a user's program: everything that the program starts ends with it, daemons included.

It is exec'd into a bare interpreter, in a session of its own, and adopts every orphan below it. When the program has
ended, or the process ``parent`` is gone, it kills what is left and ends with the program's exit code. Standard library
only.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from overlap.process import process_tree

_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
_KILL_S = 5.0
_NOT_FOUND = 127
_IGNORED = (signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that Python ignores, and that the program must not inherit as ignored."""

# A stand-in for the package keeps its __init__.py out of the bare interpreter.
BOOT = """
import sys, types
sys.modules["overlap"] = types.ModuleType("overlap")
sys.modules["overlap"].__path__ = [sys.argv[1] + "/overlap"]
from overlap.process import subreaper
subreaper.keep(int(sys.argv[2]), sys.argv[3:])
"""


def subreaper_command(argv: Sequence[str]) -> list[str]:
    """The command that runs ``argv`` under a subreaper, which ends with this process."""
    home = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return [sys.executable, "-I", "-S", "-c", BOOT, home, str(os.getpid()), *argv]


def keep(parent: int, argv: Sequence[str]) -> None:
    """Run ``argv`` to its end. Does not return.

    Two processes do this, one below the other; each cleans up when the other is killed.
    """
    outer = os.getpid()
    inner = os.fork()
    if not inner:
        _adopt()
        process_tree.bind_to_parent(outer)
        _leave(_run(argv))
    _adopt()
    process_tree.bind_to_parent(parent)
    _leave(_status(inner))


def _adopt() -> None:
    """Make every orphan below this process its child."""
    ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1, 0, 0, 0)


def _run(argv: Sequence[str]) -> int:
    try:
        return _status(os.posix_spawnp(argv[0], list(argv), os.environ, setsigdef=_IGNORED))
    except OSError as error:
        print(f"{argv[0]}: {error.strerror}", file=sys.stderr, flush=True)
        return _NOT_FOUND


def _leave(code: int) -> NoReturn:
    while left := process_tree.list_descendants(os.getpid()):
        process_tree.kill_tree(left, _KILL_S, trackers=True)
    os._exit(code)


def _status(program: int) -> int:
    """Wait for the program and return its exit code as shells have it; orphans are reaped meanwhile."""
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == program:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
