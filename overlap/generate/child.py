"""First thing that runs in every process of the engine: bound to its parent's life, its shared memory named.

The host imports this module before anything else, and so does each process that vLLM spawns from there:
``multiprocessing`` runs the spawner's main module in them first. Standard library only.
"""

from __future__ import annotations

import os

from overlap.process import LIFE, PARENT, bind_to_parent, name_shared

ENGINE, HOST = "OVERLAP_ENGINE", "OVERLAP_ENGINE_HOST"
"""Environment of an engine process: that it is one, and pid of the host once that has begun."""

_entered = False


def enter() -> None:
    """Take this process over; does nothing outside an engine process, or a second time."""
    global _entered
    if _entered or ENGINE not in os.environ:
        return
    _entered = True
    parent = os.environ.get(HOST, os.environ[PARENT])
    os.environ.setdefault(HOST, str(os.getpid()))
    bind_to_parent(int(parent))
    name_shared(os.environ[LIFE])


enter()
