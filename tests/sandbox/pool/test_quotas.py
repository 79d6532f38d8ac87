"""Cores that a process may use: its affinity, and the quotas of all control groups above it."""

from __future__ import annotations

import pytest

from sandbox.pool.quotas import cores


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
    if memberships:
        (tmp_path / "own").write_text(memberships)
    for name, text in files.items():
        path = tmp_path / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert cores(tmp_path / "groups", tmp_path / "own") == expected
