"""However much a program writes, the judge's own memory stays small: peaks of fresh processes, by the kernel."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PEAK_MIB = 200
JUDGE = """
import json, sys, tempfile
from sandbox.build.builder import Builder
from sandbox.core.nouns import Case, Limits, Program; from sandbox.core.problem import Problem
from sandbox.jail.jail import Jail
from sandbox.judging.judge import Judge

kind, mode, source = json.load(sys.stdin)
case = Case("[]" if kind == "function" else "", "1")
limits = Limits(cpu_s=60, wall_s=120)
problem = Problem("p", kind, (case,), fn_name="f" if kind == "function" else None, compare=mode, limits=limits)
with Jail() as jail, tempfile.TemporaryDirectory() as folder:
    done = Judge(jail, Builder(folder)).judge(problem, Program(source))
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM:"))  # ru_maxrss is the parent's, too
print(done.verdict, int(peak.split()[1]) // 1024)
"""
FORGE = """
import os
def f():
    nonce = os.pread(3, 32, os.fstat(3).st_size - 32)
    os.write(4, nonce + b'{{"ok": true, "values": [' + {item!r} * {count} + b'0]}}')
    os._exit(0)
"""


def judged(kind: str, source: str, mode: str = "tokens") -> tuple[str, int]:
    """The verdict, and the peak of the judging process in MiB."""
    done = subprocess.run(
        [sys.executable, "-c", JUDGE],
        input=json.dumps([kind, mode, source]),
        capture_output=True,
        text=True,
        check=True,
    )
    verdict, peak = done.stdout.split()
    return verdict, int(peak)


@pytest.mark.parametrize(
    ("kind", "source", "verdict"),
    [
        ("stdio", "import os\nwhile True: os.write(1, b'x' * (1 << 20))", "OLE"),
        ("function", "def f(): return 'x' * (100 << 20)", "OLE"),
        ("function", "def f(): return 'x' * (15 << 20)", "WA"),
        ("function", FORGE.format(item=b"[],", count=5 << 20), "OLE"),
        ("function", FORGE.format(item=b'{"t":[]},', count=1 << 20), "OLE"),
        ("function", FORGE.format(item=b"1234567,", count=1 << 20), "RE"),
    ],
    ids=["flood", "frame of 100 MB", "one long text", "forged lists", "forged tuples", "forged numbers"],
)
def test_the_judge_stays_small(kind: str, source: str, verdict: str) -> None:
    found, peak = judged(kind, source)
    assert found == verdict
    assert peak < PEAK_MIB
