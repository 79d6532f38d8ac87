"""What there is to sit on: GPUs with their bytes, and the machine's memory; those at hand, or others that are named."""

from __future__ import annotations

import re
from dataclasses import dataclass

from overlap.config import Config
from overlap.errors import ConfigError
from overlap.placement.memory import Seats

GIB = 2**30
_NAMED = re.compile(r"([1-9]\d{0,3})x(\d+(?:\.\d+)?)")


@dataclass(frozen=True, slots=True)
class Hardware:
    """``gpus`` are the bytes of each, 0 where they are not known; ``memory`` is what the machine has free, likewise."""

    gpus: tuple[int, ...]
    memory: int = 0


def named_hardware(text: str) -> Hardware:
    """ "8x80": eight GPUs of 80 GiB each, in a machine of which nothing else is known. Raises ConfigError."""
    found = _NAMED.fullmatch(text.strip())
    if found is None or not float(found[2]):
        raise ConfigError("--devices", text, "say how many GPUs of how many GiB each, for instance 8x80")
    return Hardware((int(float(found[2]) * GIB),) * int(found[1]))


def free_memory() -> int:
    """Bytes of the machine's memory that a new process can have."""
    import psutil

    return int(psutil.virtual_memory().available)


def seat(cfg: Config, hardware: Hardware) -> Seats:
    """Who sits where. Raises ConfigError where the GPUs do not suffice."""
    r, ranks, gpus = cfg.rollout, cfg.learn.ranks, len(hardware.gpus)
    if not gpus:
        return Seats((), ((),), (0,) * ranks, False, "shm", hardware.memory)
    way_out = f"there are {gpus} GPUs: use at most so many"
    if r.tensor_parallel > gpus:
        raise ConfigError("rollout.tensor_parallel", r.tensor_parallel, way_out)
    if ranks > gpus:
        raise ConfigError("learn.ranks", ranks, way_out)
    engines = (tuple(range(r.tensor_parallel)),)
    shared = r.weight_backend == "ipc" or r.tensor_parallel + ranks > gpus
    first = 0 if shared else r.tensor_parallel
    backend = ("ipc" if shared else "nccl") if r.weight_backend == "auto" else r.weight_backend
    return Seats(hardware.gpus, engines, tuple(range(first, first + ranks)), backend == "ipc", backend, hardware.memory)
