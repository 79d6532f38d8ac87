"""Memory is what is resident: what a program reserves and never touches costs it nothing, what it touches counts."""

from __future__ import annotations

import pytest
from tiers import jail_of
from toolchains import need
from wide import wide

from sandbox.core.nouns import MIB, Case, Limits, Program
from sandbox.core.problem import Problem
from sandbox.judging.judge import Judge

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
JAVA = """
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
        ("java", JAVA.format(15_000_000), 256, "AC"),
        ("java", JAVA.format(40_000_000), 256, "MLE"),
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
