"""Cores that a process may use: its affinity, and the quotas of all control groups above it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandbox.pool.quotas import cores

HERE = cores()


def quota(groups: Path, own: Path, memberships: str, **files: str) -> int:
    own.write_text(memberships)
    for name, text in files.items():
        path = groups / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return cores(groups, own)


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))


def test_there_is_at_least_one_core() -> None:
    assert HERE >= 1


@pytest.mark.parametrize(
    ("memberships", "files", "expected"),
    [
        ("0::/\n", {"cpu_dot_max": "350000 100000"}, 4),
        ("0::/\n", {"cpu_dot_max": "max 100000"}, 8),
        ("0::/job/step\n", {"job__cpu_dot_max": "200000 100000", "job__step__cpu_dot_max": "max 100000"}, 2),
        ("0::/job\n", {"job__cpu_dot_max": "10000 100000"}, 1),
        ("0::/job\n", {"job__cpu_dot_max": "1600000 100000"}, 8),
        ("4:cpu,cpuacct:/job\n", {"cpu__job__cpu.cfs_quota_us": "300000", "cpu__job__cpu.cfs_period_us": "100000"}, 3),
        ("4:cpu:/job\n", {"cpu__job__cpu.cfs_quota_us": "-1", "cpu__job__cpu.cfs_period_us": "100000"}, 8),
        ("5:memory:/job\n", {"memory__job__cpu_dot_max": "100000 100000"}, 8),
        ("0::/elsewhere\n", {}, 8),
        ("nonsense", {}, 8),
    ],
)
def test_the_smallest_quota_bounds_the_cores(tmp_path, memberships: str, files: dict[str, str], expected: int) -> None:
    assert quota(tmp_path / "groups", tmp_path / "own", memberships, **files) == expected


def test_no_control_groups_bound_nothing(tmp_path) -> None:
    assert cores(tmp_path / "groups", tmp_path / "own") == 8
