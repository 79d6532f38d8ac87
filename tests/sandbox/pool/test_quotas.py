"""What a process may use: its affinity and the machine's memory, bounded by all control groups above it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sandbox.pool.quotas import cores, memory_bytes, too_much_memory


def groups(folder: Path, memberships: str, files: dict[str, str]) -> tuple[Path, Path]:
    """Write what the kernel would show of a process in these groups."""
    if memberships:
        (folder / "own").write_text(memberships)
    for name, text in files.items():
        path = folder / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "groups", folder / "own"


def test_there_is_at_least_one_core() -> None:
    assert cores() >= 1


@pytest.mark.parametrize(
    ("memberships", "files", "expected"),
    [
        ("0::/\n", {"cpu.max": "350000 100000"}, 4),
        ("0::/\n", {"cpu.max": "max 100000"}, 8),
        ("0::/job/step\n", {"job/cpu.max": "200000 100000", "job/step/cpu.max": "max 100000"}, 2),
        ("0::/job\n", {"job/cpu.max": "10000 100000"}, 1),
        ("0::/job\n", {"job/cpu.max": "1600000 100000"}, 8),
        ("4:cpu,cpuacct:/job\n", {"cpu/job/cpu.cfs_quota_us": "300000", "cpu/job/cpu.cfs_period_us": "100000"}, 3),
        ("4:cpu:/job\n", {"cpu/job/cpu.cfs_quota_us": "-1", "cpu/job/cpu.cfs_period_us": "100000"}, 8),
        ("5:memory:/job\n", {"memory/job/cpu.max": "100000 100000"}, 8),
        ("0::/elsewhere\n", {}, 8),
        ("nonsense", {}, 8),
        ("", {}, 8),
    ],
)
def test_the_smallest_quota_bounds_the_cores(
    tmp_path, monkeypatch, memberships: str, files: dict[str, str], expected: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))
    assert cores(*groups(tmp_path, memberships, files)) == expected


@pytest.mark.parametrize(
    ("memberships", "files", "expected"),
    [
        ("0::/job/step\n", {"job/memory.max": "200000000", "job/step/memory.max": "max"}, 200_000_000),
        ("4:memory:/job\n", {"memory/job/memory.limit_in_bytes": "300000000"}, 300_000_000),
        ("4:memory:/job\n", {"memory/job/memory.limit_in_bytes": "9223372036854771712"}, None),
        ("0::/job\n", {}, None),
    ],
)
def test_the_smallest_group_bounds_the_memory(
    tmp_path: Path, memberships: str, files: dict[str, str], expected: int | None
) -> None:
    found = memory_bytes(*groups(tmp_path, memberships, files))
    assert found == (expected or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


def test_programs_that_do_not_fit_into_the_memory_are_told() -> None:
    assert too_much_memory(4, 100 << 20, 400 << 20) == ""
    assert too_much_memory(5, 100 << 20, 400 << 20).startswith("5 programs at once, each of up to 100 MiB: more than")
