"""The machine itself: the memory that a new process can have, within the limits of a container or a batch job, and
what its processor computes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_GROUPS, _OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_V2 = ("memory.max", "memory.current", "inactive_file")
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def free_memory() -> int:
    """Bytes."""
    import psutil

    return max(0, min([int(psutil.virtual_memory().available), *_rooms(_GROUPS, _OWN)]))


def computes_bfloat16(processor: Path = Path("/proc/cpuinfo")) -> bool:
    """False where bfloat16 products are done in software, 50 times slower than float32 (x86 without AVX-512 or AMX, Arm
    without bf16); True where nothing is known.
    """
    with suppress(OSError):
        words = set(processor.read_text().split())
        return not words & {"sse2", "asimd"} or bool(words & {"avx512bw", "amx_bf16", "bf16"})
    return True


def _rooms(groups: Path, own: Path) -> Iterator[int]:
    """Bytes that each control group above this process still gives, where it has a limit. A file's pages that nobody
    uses are given back when they are wanted.
    """
    with suppress(OSError):
        for line in own.read_text().splitlines():
            number, controllers, path = line.split(":", 2)
            names = _V2 if number == "0" else _V1 if "memory" in controllers.split(",") else None
            if names is None:
                continue
            top = groups if number == "0" else groups / "memory"
            folder = top / path.lstrip("/")
            for group in (folder, *folder.parents):
                if group.is_relative_to(top):
                    yield from _room(group, *names)


def _room(group: Path, limit: str, usage: str, reclaimable: str) -> Iterator[int]:
    with suppress(OSError, ValueError):  # no such group here, or "max"
        most, used = int((group / limit).read_text()), int((group / usage).read_text())
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        yield most - used + int(stat.get(reclaimable, 0))
