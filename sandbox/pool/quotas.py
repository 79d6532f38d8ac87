"""Resources that programs can use here: cores, and memory for all workers together."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

_GROUPS, _OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_MEMORY: Final = {True: "memory.max", False: "memory.limit_in_bytes"}
"""A group's limit, by whether its tree is unified (v2)."""


def cores(groups: Path = _GROUPS, own: Path = _OWN) -> int:
    """Return the cores that this process may use: its affinity, bounded by the CPU quotas of its control groups (of a
    container or a batch job). At least 1.
    """
    return max(1, min([len(os.sched_getaffinity(0)), *_quotas(groups, own)]))


def memory_bytes(groups: Path = _GROUPS, own: Path = _OWN) -> int:
    """Return the memory of this machine, or of the smallest control group that this process is in."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for group, unified in groups_above("memory", groups, own):
        with suppress(OSError, ValueError):  # no such group here, or none: "max"
            found.append(int((group / _MEMORY[unified]).read_text("ascii")))
    return min(found)


def too_much_memory(workers: int, limit_bytes: int, has_bytes: int) -> str:
    """Return what to say where `workers` programs at their limit do not fit into the memory that there is; else ""."""
    if workers * limit_bytes <= has_bytes:
        return ""
    programs = "a program" if workers == 1 else f"{workers} programs at once, each"
    return (
        f"{programs} of up to {limit_bytes / 2**20:,.0f} MiB: more than the {has_bytes / 2**20:,.0f} MiB that this "
        "machine or its container has; who meets that limit gets no verdict"
    )


def groups_above(controller: str, groups: Path = _GROUPS, own: Path = _OWN) -> Iterator[tuple[Path, bool]]:
    """Yield the groups of this process for a controller, from its own to the top, and whether their tree is v2's."""
    with suppress(OSError, ValueError):
        for line in own.read_text("ascii", "replace").splitlines():
            number, controllers, path = line.split(":", 2)
            if number == "0":
                tops = {groups}
            elif controller in controllers.split(","):
                tops = {groups / controller, groups / controllers}
            else:
                continue
            for top in tops:
                folder = top / path.lstrip("/")
                for group in (folder, *folder.parents):
                    if group.is_relative_to(top):
                        yield group, number == "0"


def _quotas(groups: Path, own: Path) -> Iterator[int]:
    for group, unified in groups_above("cpu", groups, own):
        yield from _quota(group, unified=unified)


def _quota(group: Path, *, unified: bool) -> Iterator[int]:
    """Yield the cores that a group may use at once, rounded up, where it has a quota."""
    with suppress(OSError, ValueError):  # no such group here, or none: "max"
        if unified:
            quota, period = map(int, (group / "cpu.max").read_text("ascii").split())
        else:
            quota, period = (int((group / f"cpu.cfs_{name}_us").read_text("ascii")) for name in ("quota", "period"))
        if quota > 0 and period > 0:  # -1: none
            yield -(-quota // period)
