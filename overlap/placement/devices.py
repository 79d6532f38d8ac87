"""Resources of a machine for engines and learners: GPUs, cores and memory. Looked up without torch and without CUDA."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Literal

from overlap.config.fields import Config
from overlap.core.errors import ConfigError
from overlap.process.run_environment import child_environment
from sandbox.pool.quotas import cores, groups_above

_SMI_S = 60.0  # a node of eight GPUs whose driver is not kept loaded takes half of that
_MIB = 2**20
SHM = Path("/dev/shm")
_GROUPS, _OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_V2 = ("memory.max", "memory.current", "inactive_file")
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
VISIBLE = "CUDA_VISIBLE_DEVICES"
ELSEWHERE = " (`overlap train --dry-run --devices 8x80` plans the memory of other hardware)"


@dataclass(frozen=True, slots=True)
class Devices:
    """GPUs by the ``names`` that ``CUDA_VISIBLE_DEVICES`` has for them, none where a run is on CPUs.

    ``bytes`` is the memory of each (of the smallest), 0 where it is not known. ``cores`` are the CPUs that this process
    may use, one of each physical core; ``quota``: a container's quota leaves fewer than its affinity. ``shared`` is the
    size of its shared memory, bytes (0: not known).
    """

    names: tuple[str, ...] = ()
    bytes: int = 0
    cores: tuple[int, ...] = (0,)
    shared: int = field(default=0, compare=False)
    quota: bool = field(default=False, compare=False)

    @property
    def kind(self) -> Literal["cpu", "cuda"]:
        """Kind of device that engine and learner run on."""
        return "cuda" if self.names else "cpu"

    @classmethod
    def gpus(cls, count: int, bytes: int = 0) -> Devices:
        """``count`` GPUs that nothing hides, of ``bytes`` each."""
        return cls(tuple(map(str, range(count))), bytes)


@dataclass(frozen=True, slots=True)
class NodeDevices:
    """Resources of a cluster's node for engines and ranks. ``name`` is what a person reads of it, ``address`` where the
    others reach it, ``host`` its memory that is free, bytes (0: not known). ``here``: it is the driver's machine.
    """

    name: str
    address: str
    devices: Devices
    host: int = 0
    here: bool = False


def devices_here(wanted: str = "auto", environ: Mapping[str, str] = os.environ) -> Devices:
    """Resources of this machine that a run with ``run.device`` = ``wanted`` may use.

    Raises ConfigError where that is "cuda" and there is no GPU, or no torch that could use one.
    """
    physical = physical_cores(sorted(os.sched_getaffinity(0)))
    held = physical[: cores()]
    built = wanted != "cpu" and torch_has_cuda()
    known = listed() if built else ()
    names = visible(len(known), environ.get(VISIBLE))
    if wanted == "cuda" and not names:
        why = "this torch is built without CUDA" if not built else "the driver shows no GPU"
        why = f"{VISIBLE}={environ[VISIBLE]} hides every GPU" if known and VISIBLE in environ else why
        raise ConfigError("run.device", "cuda", f"{why}: use auto or cpu, or install for a GPU{ELSEWHERE}")
    shared = shutil.disk_usage(SHM).total if SHM.is_dir() else 0
    return Devices(names, _smallest(names, known), held, shared, held != physical)


def _smallest(names: Sequence[str], known: Sequence[int]) -> int:
    """Bytes of the smallest of the GPUs ``names``, of all that are ``known``, in the driver's order; 0: not known.

    CUDA counts the fastest first, so which one a number means is not known where GPUs differ and some are hidden. The
    memory of a part of a GPU (MIG) is not found here.
    """
    differ = len(set(known)) > 1 and len(names) < len(known)
    if not names or differ or any(name.startswith("MIG-") for name in names):
        return 0
    return min(known, default=0)


def visible(count: int, given: str | None) -> tuple[str, ...]:
    """The names of those of ``count`` GPUs that CUDA shows under ``CUDA_VISIBLE_DEVICES`` = ``given``.

    As CUDA reads it: up to the first that is none, and none at all where one comes twice.
    """
    if given is None or not count:
        return tuple(map(str, range(count)))
    names = list[str]()
    for name in map(str.strip, given.split(",")):
        if not ((name.isdecimal() and int(name) < count) or name.startswith(("GPU-", "MIG-"))):
            break
        names.append(str(int(name)) if name.isdecimal() else name)  # "00" is 0 once more
    return tuple(names) if len(set(names)) == len(names) else ()


@cache
def listed() -> tuple[int, ...]:
    """Bytes of each GPU of the machine, whatever is visible of them; 0 where the driver's tool is missing or fails."""
    query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            query, env=child_environment(), capture_output=True, text=True, timeout=_SMI_S, check=True
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return _nodes()
    return tuple(int(line) * _MIB if line.isdigit() else 0 for line in map(str.strip, done.stdout.splitlines()))


def _nodes() -> tuple[int, ...]:
    return tuple(0 for _ in Path("/dev").glob("nvidia[0-9]*"))


def torch_has_cuda() -> bool:
    """True when the installed torch is built for CUDA, by the file in which it says so. Imports nothing."""
    spec = PathFinder.find_spec("torch")
    for folder in (spec and spec.submodule_search_locations) or ():
        if (file := Path(folder, "version.py")).is_file():
            built = re.search(r"^cuda\b[^=\n]*=\s*(\S+)", file.read_text(encoding="utf-8"), re.MULTILINE)
            return built is not None and built[1] != "None"
    return False


def physical_cores(cpus: Sequence[int], root: Path = Path("/sys/devices/system/cpu")) -> tuple[int, ...]:
    """One of the ``cpus`` of each physical core, the last as the engine does; all where the machine does not tell."""
    last = dict[str, int]()
    for cpu in cpus:
        siblings = root / f"cpu{cpu}/topology/thread_siblings_list"
        last[siblings.read_text().strip() if siblings.is_file() else str(cpu)] = cpu
    return tuple(sorted(last.values()))


def free_memory() -> int:
    """Return the bytes of memory that a new process can have here, also in a container or a batch job."""
    import psutil

    return max(0, min([int(psutil.virtual_memory().available), *_rooms(_GROUPS, _OWN)]))


def bfloat16_is_fast(processor: Path = Path("/proc/cpuinfo")) -> bool:
    """True when products in bfloat16 take no longer than in float32: on x86 with AMX, on Arm with bf16, and where
    nothing is known. With AVX-512 alone they take about twice as long, without it they are done in software, 50 times.
    """
    words = set(processor.read_text().split()) if processor.is_file() else set[str]()
    return not words & {"sse2", "asimd"} or bool(words & {"amx_bf16", "bf16"})


def with_dtype(cfg: Config) -> Config:
    """Return ``cfg`` with ``model.dtype=auto`` replaced by the number type in which this machine is faster. For a
    cluster, whose nodes are not known yet, this is bfloat16, unless ``run.device`` is "cpu".

    Raises ConfigError as ``devices_here`` does.
    """
    if cfg.model.dtype != "auto":
        return cfg
    gpus = devices_here(cfg.run.device).names or (cfg.cluster.address and cfg.run.device != "cpu")
    dtype: Literal["bfloat16", "float32"] = "bfloat16" if gpus or bfloat16_is_fast() else "float32"
    return replace(cfg, model=replace(cfg.model, dtype=dtype))


def _rooms(groups: Path, own: Path) -> Iterator[int]:
    """Bytes that each control group above this process still gives, where it has a limit. A file's pages that are not
    in use are given back when they are wanted.
    """
    for group, unified in groups_above("memory", groups, own):
        limit, usage, reclaimable = _V2 if unified else _V1
        with suppress(OSError, ValueError):  # no such group here, or "max"
            most, used = int((group / limit).read_text()), int((group / usage).read_text())
            stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            yield most - used + int(stat.get(reclaimable, 0))
