"""First step of every process of an engine: bind it to its parent's life and name its shared memory.

The host takes it, and each process that the engine spawns from there: ``multiprocessing`` runs the host's module first.
"""

from __future__ import annotations

import os

from overlap.process import LIFE, PARENT, bind_to_parent, name_shared

ENGINE, HOST = "OVERLAP_ENGINE", "OVERLAP_ENGINE_HOST"
"""Environment of an engine process: that it is one, and pid of the host once that has begun."""

_entered = False


def enter_engine_process() -> None:
    """Bind this process to its parent; does nothing outside an engine process, or a second time."""
    global _entered
    if _entered or ENGINE not in os.environ:
        return
    _entered = True
    parent = os.environ.get(HOST, os.environ[PARENT])
    os.environ.setdefault(HOST, str(os.getpid()))
    bind_to_parent(int(parent))
    name_shared(os.environ[LIFE])
