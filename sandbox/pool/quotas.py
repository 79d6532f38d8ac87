"""The number of cores that programs can use here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_GROUPS, _OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def cores(groups: Path = _GROUPS, own: Path = _OWN) -> int:
    """Return the cores that this process may use: its affinity, bounded by the CPU quotas of its control groups (of a
    container or a batch job). At least 1.
    """
    return max(1, min([len(os.sched_getaffinity(0)), *_quotas(groups, own)]))


def _quotas(groups: Path, own: Path) -> Iterator[int]:
    """Cores that each group above this process may use at once, rounded up, where it has a quota."""
    with suppress(OSError, ValueError):
        for line in own.read_text("ascii", "replace").splitlines():
            number, controllers, path = line.split(":", 2)
            if number == "0":
                tops = [groups]
            elif "cpu" in controllers.split(","):
                tops = [groups / "cpu", groups / controllers]
            else:
                continue
            for top in tops:
                folder = top / path.lstrip("/")
                for group in (folder, *folder.parents):
                    if group.is_relative_to(top):
                        yield from _quota(group, unified=number == "0")


def _quota(group: Path, *, unified: bool) -> Iterator[int]:
    with suppress(OSError, ValueError):  # no such group here, or none: "max"
        if unified:
            quota, period = map(int, (group / "cpu.max").read_text("ascii").split())
        else:
            quota, period = (int((group / f"cpu.cfs_{name}_us").read_text("ascii")) for name in ("quota", "period"))
        if quota > 0 and period > 0:  # -1: none
            yield -(-quota // period)
