"""What processes hold is counted wherever it lies, and shared pages once. Of whole runs: the zoo, row 36."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sandbox.core.nouns import MIB
from sandbox.zygote import memory_usage
from sandbox.zygote.memory_usage import read_proc_file, weigh

SAYS = "os.write(1, b'%d\\n' % os.getpid())"
FILLS = f"m = mmap.mmap(-1, {64 * MIB})\nm.write(b'x' * {64 * MIB})\n"
DROPPED = FILLS + f"m.madvise(mmap.MADV_DONTNEED)\n{SAYS}"
TABLES = f"""
m = mmap.mmap(-1, 16 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000, prot=mmap.PROT_READ)
for place in range(0, 16 << 30, 2 << 20):
    m[place]
{SAYS}"""


def weighed(source: str, processes: int = 1, limit_bytes: int = 32 * MIB, most: int = 1 << 40) -> int:
    """What a program's processes hold when they have said their pids."""
    argv = [sys.executable, "-S", "-c", f"import mmap, os, sys\n{source}\nsys.stdin.read()"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            return weigh([int(process.stdout.readline()) for _ in range(processes)], limit_bytes, lambda: most)
        finally:
            process.kill()


@pytest.mark.parametrize(
    "source",
    [DROPPED, FILLS + f"if os.fork():\n    m.close()\n    os.wait()\n{SAYS}"],
    ids=["dropped", "kept by a child that never touched it"],
)
def test_shared_memory_that_no_process_shows_as_its_own_is_counted(source: str) -> None:
    assert weighed(source) >= 64 * MIB


def test_who_hides_what_it_maps_is_taken_to_use_it_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: str, size: int = 8192) -> bytes:
        if path.endswith(("/maps", "/smaps_rollup")):
            raise PermissionError
        return read_proc_file(path, size)

    monkeypatch.setattr(memory_usage, "read_proc_file", refused)
    assert weighed(DROPPED) >= 64 * MIB


@pytest.mark.parametrize(
    ("source", "processes"),
    [
        (FILLS + f"os.fork()\nm.read(1)\n{SAYS}", 2),
        (f"held = b'x' * {64 * MIB}\nos.fork() and os.fork()\n{SAYS}", 3),
    ],
    ids=["shared memory", "pages of forks"],
)
def test_what_processes_share_is_counted_once(source: str, processes: int) -> None:
    assert 64 * MIB <= weighed(source, processes) < 110 * MIB


def test_shared_memory_that_was_never_filled_is_none() -> None:
    assert weighed(f"m = mmap.mmap(-1, {64 * MIB})\n{SAYS}", most=MIB) < 32 * MIB


def test_page_tables_are_counted() -> None:
    assert weighed(TABLES, limit_bytes=24 * MIB) >= 32 * MIB
