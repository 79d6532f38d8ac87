"""First step of every process of an engine: bind it to its parent's life and name its shared memory.

The host takes it, and each process that the engine spawns from there (``multiprocessing`` runs the host's module first)
or forks.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import chain
from typing import Any

from overlap.process.process_tree import bind_to_parent
from overlap.process.run_environment import LIFE, PARENT, name_shared

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


def fork_one_process(parallel: Any, cores: Sequence[Sequence[int]]) -> None:
    """Make vLLM's core and its only worker one process, a fork of this one, bound to the worker's cores [1][...].

    A fork does not import vLLM again, which takes 8 s of CPU. On a CPU vLLM starts both from nothing, because the
    worker finds number and cores of its threads in its environment; a fork has both from here, as long as no thread of
    OpenMP has run before. ``parallel`` is vLLM's ``ParallelConfig``; it is changed, and so is this process.
    """
    import torch

    bound = set(chain.from_iterable(cores))

    def enter() -> None:
        bind_to_parent(os.getppid())
        if bound:
            os.sched_setaffinity(0, bound)

    parallel.distributed_executor_backend = "uni"
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
    os.register_at_fork(after_in_child=enter)
    if bound:
        torch.set_num_threads(len(bound))
