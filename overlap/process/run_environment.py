"""Marks by which the processes of a run are known, the environment that they start with, and the words of a command
line. Standard library only.

Everything that belongs to a run is named after its scratch directory: the marker in the environment of its processes,
and the memory that they share in ``/dev/shm``. So a process that knows the directory (the run, or the reaper after the
run was killed) finds all of it, and nothing has to be announced.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shlex
import sys
from pathlib import Path

RUN, LIFE, PARENT = "OVERLAP_RUN", "OVERLAP_LIFE", "OVERLAP_PARENT"
"""Environment variables of every process of a run: name of the run, of the tree of processes that it belongs to, and
pid of the process that has started that tree."""

_CLUSTER = ("RAY_ADDRESS", "RAY_AUTH_")
_SHM = Path("/dev/shm")
_ROOT = Path(__file__).resolve().parents[2]


def run_name(scratch: Path) -> str:
    """The name of the run that works in this directory."""
    return f"ovl-{hashlib.sha256(os.fsencode(os.path.abspath(scratch))).hexdigest()[:8]}"


def child_environment(**values: str) -> dict[str, str]:
    """A copy of this process's environment with ``values`` in it, ready to be handed to a new process.

    A process that is started *without* an environment of its own reads this process's at the moment of ``execve``:
    where another thread sets a variable then, the start fails with EFAULT. So all starts pass one, and no code sets a
    variable here for a child. The interpreter's own directory comes first on the PATH: just-in-time builds look for
    ninja there. The access to a cluster is left out: a process that has it can run anything there.
    """
    # Each of the two steps is one operation of the interpreter, so another thread may change the environment meanwhile.
    ours = {name: value for name in list(os.environ) if (value := os.environ.get(name)) is not None}
    ours = {name: value for name, value in ours.items() if not name.startswith(_CLUSTER)}
    tools = f"{Path(sys.executable).parent}{os.pathsep}{ours.get('PATH', os.defpath)}"
    known = [os.path.abspath(path) for path in ours.get("PYTHONPATH", "").split(os.pathsep) if path]
    return ours | {"PATH": tools, "PYTHONPATH": os.pathsep.join([str(_ROOT), *known])} | values


def shared_memory_names(prefix: str) -> list[str]:
    """Names in ``/dev/shm`` of the memory and semaphores of the run, or the tree, that is called ``prefix``."""
    names = os.listdir(_SHM) if _SHM.is_dir() else []
    return [name for name in names if name.removeprefix("sem.").startswith((f"{prefix}_", f"{prefix}-"))]


def remove_shared(prefix: str) -> None:
    """Remove what killed processes of the run, or the tree, called ``prefix`` left in ``/dev/shm``."""
    for name in shared_memory_names(prefix):
        with contextlib.suppress(FileNotFoundError):
            (_SHM / name).unlink()


def remove_exports() -> None:
    """Remove the counters that torch keeps in ``/dev/shm`` of GPU memory that this process has handed to others. They
    are called ``torch_PID_...``; another container may have the same pid and directory, so only those mapped here go.
    """
    own = re.compile(rf"{_SHM}/torch_{os.getpid()}_\S+")
    for path in set(own.findall(Path("/proc/self/maps").read_text())):
        Path(path).unlink(missing_ok=True)


def name_shared(prefix: str) -> None:
    """Have ``multiprocessing`` call the memory and semaphores that this process makes by names with ``prefix``.

    Semaphores: also those of the processes that it starts. RuntimeError where this Python names them in another way.
    """
    from multiprocessing import process, shared_memory

    config = process.current_process().__dict__.get("_config", {})
    known = {"_SHM_NAME_PREFIX", "_SHM_SAFE_NAME_LENGTH"} <= vars(shared_memory).keys()
    if not known or "semprefix" not in config:
        raise RuntimeError(f"multiprocessing of Python {sys.version.split()[0]} names shared memory in an unknown way")
    names = vars(shared_memory)
    names["_SHM_NAME_PREFIX"] = f"/{prefix}_"
    names["_SHM_SAFE_NAME_LENGTH"] = len(prefix) + 2 + 16
    config["semprefix"] = f"/{prefix}"


def command_words(command: str) -> list[str]:
    """The words of a shell's command line; none where only a shell can read it."""
    try:
        return shlex.split(command, comments=True)
    except ValueError:
        return []
