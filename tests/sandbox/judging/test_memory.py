"""However much a program writes, the judge's own memory stays small: peaks of fresh processes, by the kernel."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from tiers import jail_of
from toolchains import need
from wide import wide

from sandbox.core.nouns import MIB, Case, Limits, Program
from sandbox.core.problem import Problem
from sandbox.judging.judge import Judge

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


# --- what a program reserves and never touches costs it nothing -------------------------------------------------------


tiered_jail = jail_of("A", wide("B"))

ARRAY = (
    '#include <stdio.h>\n#include <string.h>\nstatic volatile char a[1000000000];\nint main(void) {{ {} puts("3"); }}'
)
THREAD = """
#include <pthread.h>
#include <stdio.h>
static int down(int n) {{ volatile char pad[1000]; pad[n % 1000] = 1; return n ? down(n - 1) + pad[n % 1000] : 0; }}
static void *work(void *given) {{ down({}); puts("3"); return given; }}
int main(void) {{
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    if (pthread_attr_setstacksize(&attributes, 900ul << 20) || pthread_create(&thread, &attributes, work, 0)) return 1;
    return pthread_join(thread, 0);
}}"""
STACK = """
import threading
threading.stack_size({} << 20)
thread = threading.Thread(target=lambda: print(3))
thread.start()
thread.join()
"""
JAVA_ARRAY = """
public class Main {{
    public static void main(String[] arguments) {{
        long[] held = new long[{}];
        held[5] = 3;
        System.out.println(held[5]);
    }}
}}"""
GO = 'package main\nimport "fmt"\nvar a [1000000000]byte\nfunc main() { a[5] = 3; fmt.Println(a[5]) }'
RUST = 'fn main() {{ let held = std::hint::black_box(vec![{}u8; 1_000_000_000]); println!("{{}}", held[5] / 2 + 3); }}'


@pytest.mark.parametrize(
    ("language", "source", "memory_mib", "verdict"),
    [
        ("c", ARRAY.format("a[5] = 3;"), 512, "AC"),
        ("c", ARRAY.format("memset((void *)a, 1, sizeof a);"), 512, "MLE"),
        ("c", THREAD.format(1), 512, "AC"),
        ("c", THREAD.format(680_000), 512, "MLE"),
        ("python", STACK.format(512), 512, "AC"),
        ("python", STACK.format(900), 64, "AC"),
        ("python", "held = [0] * 10**9\nprint(3)", 512, "MLE"),
        ("java", JAVA_ARRAY.format(15_000_000), 256, "AC"),
        ("java", JAVA_ARRAY.format(40_000_000), 256, "MLE"),
        ("rust", RUST.format(0), 512, "AC"),
        ("rust", RUST.format(1), 512, "MLE"),
        ("javascript", "const a = new Float64Array(1.2e8); a[5] = 3; console.log(a[5])", 512, "AC"),
        ("go", GO, 512, "AC"),
    ],
)  # fmt: skip
def test_a_program_is_held_to_what_it_touches(
    tiered_judge: Judge, language: str, source: str, memory_mib: int, verdict: str
) -> None:
    need(language)
    limits = Limits(cpu_s=10, wall_s=60, memory_bytes=memory_mib * MIB)
    done = tiered_judge.judge(Problem("reserves", "stdio", (Case("", "3"),), limits=limits), Program(source, language))
    assert done.verdict == verdict, (done.compile_log, done.cases)
