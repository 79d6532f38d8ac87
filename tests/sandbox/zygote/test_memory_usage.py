"""What processes hold is counted wherever it lies, and shared pages once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sandbox.core import MIB, Case, Limits, Problem, Program, Verdict
from sandbox.judging import Judge
from sandbox.zygote import memory_usage
from sandbox.zygote.memory_usage import read_proc_file, weigh


@contextmanager
def running(source: str, expected: int = 1) -> Iterator[list[int]]:
    """Processes of a program that has said its pids."""
    argv = [sys.executable, "-S", "-c", f"import mmap, os, sys\n{source}\nsys.stdin.read()"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield [int(process.stdout.readline()) for _ in range(expected)]
        finally:
            process.kill()


SAYS = "os.write(1, b'%d\\n' % os.getpid())"
FILLS = f"m = mmap.mmap(-1, {64 * MIB})\nm.write(b'x' * {64 * MIB})\n"


@pytest.mark.parametrize(
    "source",
    [FILLS + f"m.madvise(mmap.MADV_DONTNEED)\n{SAYS}", FILLS + f"if os.fork():\n    m.close()\n    os.wait()\n{SAYS}"],
    ids=["dropped", "kept by a child that never touched it"],
)
def test_shared_memory_that_no_process_shows_as_its_own_is_counted(source: str) -> None:
    with running(source) as pids:
        assert weigh(pids, 32 * MIB) >= 64 * MIB


def test_who_hides_what_it_maps_is_taken_to_use_it_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: str, size: int = 8192) -> bytes:
        if path.endswith(("/maps", "/smaps_rollup")):
            raise PermissionError
        return read_proc_file(path, size)

    monkeypatch.setattr(memory_usage, "read_proc_file", refused)
    with running(FILLS + f"m.madvise(mmap.MADV_DONTNEED)\n{SAYS}") as pids:
        assert weigh(pids, 32 * MIB) >= 64 * MIB


def test_shared_memory_is_counted_once_however_many_map_it() -> None:
    with running(FILLS + f"os.fork()\nm.read(1)\n{SAYS}", 2) as pids:
        assert 64 * MIB <= weigh(pids, 32 * MIB) < 110 * MIB


def test_page_tables_are_counted() -> None:
    source = (
        "flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000\n"
        "m = mmap.mmap(-1, 16 << 30, flags=flags, prot=mmap.PROT_READ)\n"
        "for place in range(0, 16 << 30, 2 << 20):\n    m[place]\n" + SAYS
    )
    with running(source) as pids:
        assert weigh(pids, 24 * MIB) >= 32 * MIB


def test_pages_that_forks_share_are_counted_once() -> None:
    with running(f"held = b'x' * {64 * MIB}\nos.fork() and os.fork()\n{SAYS}", 3) as pids:
        assert 64 * MIB <= weigh(pids, 32 * MIB) < 110 * MIB


def test_many_small_processes_are_counted_in_full(tiered_judge: Judge) -> None:
    source = (
        "import os, time\nheld = []\nfor k in range(8):\n    if os.fork() == 0:\n"
        f"        held = bytearray(os.urandom({20 * MIB}))\n        time.sleep(60)\n        os._exit(0)\n"
        "time.sleep(60)\nprint('ok')\n"
    )
    limits = Limits(cpu_s=20, wall_s=40, memory_bytes=128 * MIB)
    done = tiered_judge.judge(Problem("many", "stdio", (Case("", "ok"),), limits=limits), Program(source))
    assert done.verdict is Verdict.MLE


def test_many_processes_that_share_what_they_hold_are_within_the_limit(tiered_judge: Judge) -> None:
    source = (
        f"import os, time\nheld = os.urandom({64 * MIB})\nfor k in range(8):\n    if os.fork() == 0:\n"
        "        time.sleep(0.2)\n        os._exit(0)\nfor k in range(8):\n    os.wait()\nprint('ok')\n"
    )
    limits = Limits(cpu_s=20, wall_s=40, memory_bytes=160 * MIB)
    done = tiered_judge.judge(Problem("many", "stdio", (Case("", "ok"),), limits=limits), Program(source))
    assert done.verdict is Verdict.AC, done.cases
