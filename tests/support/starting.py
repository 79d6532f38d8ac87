"""Starts: a machine without room for them, and what this process holds before and after."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from overlap.process.process_tree import Pid, identify


def refuse(number: int, call: Callable[..., Any], after: int = 0, fault: Exception | None = None) -> Callable[..., Any]:
    """``call``, and from the call number ``after`` on an OSError of this number, or ``fault``."""
    calls = 0

    def full(*args: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > after:
            raise fault or OSError(number, os.strerror(number))
        return call(*args, **named)

    return full


class Held:
    """Descriptors and children that this process has, to be compared with those that it has later."""

    def __init__(self) -> None:
        gc.collect()  # what nothing refers to any more
        self.fds = {fd.name for fd in Path("/proc/self/fd").iterdir()}
        self.children = set(psutil.Process().children(recursive=True))

    def new(self) -> set[object]:
        """Those that were not there before. What ends by itself meanwhile is not looked at."""
        now = Held()
        return {*(now.fds - self.fds), *(now.children - self.children)}


def known(pid: str | int) -> Pid:
    """The process that has this pid now."""
    process = identify(int(pid))
    assert process is not None
    return process
