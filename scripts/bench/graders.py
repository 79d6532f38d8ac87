"""Milliseconds per judged program: the jail beside graders written the usual ways, in turns.

    process    a process per test: the program is a file, its interpreter is started for every test
    manager    a multiprocessing.Manager and a forked process per program; the tests run inside that process, one after
               the other, with the streams and `open` mocked for each, after the usual star imports
    fresh      an interpreter started per program; the tests run inside it, after the same imports
    lean       `manager` with nothing mocked but two streams, and without the imports: no published grader's, but a
               floor for all that run the tests of a program in one process

None of the rivals isolates anything, and only `process` runs every test in a process of its own, as the jail does.
Absolute milliseconds depend on the machine and on what else it does; the ratios are medians over rounds, and within a
round all of them ran right after each other. CPU time is that of all processes of a grader, over all rounds together.
"""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from unittest import mock

from _shared import argument_parser

from sandbox.build.builder import Build, Builder
from sandbox.build.units import compose
from sandbox.core.nouns import Case, Program, Verdict
from sandbox.core.problem import Problem
from sandbox.jail.jail import Jail
from sandbox.judging.judge import Judge
from sandbox.languages.table import find_language

SIZES = (1, 15, 60)
TICKS = os.sysconf("SC_CLK_TCK")
TESTS_S = 6.0
PYTHON = """\
import sys
from collections import defaultdict


def solve(values, limit):
    count = defaultdict(int)
    best = 0
    left = 0
    total = 0
    for right, value in enumerate(values):
        total += value
        count[value] += 1
        while total > limit and left <= right:
            total -= values[left]
            count[values[left]] -= 1
            left += 1
        best = max(best, right - left + 1)
    return best, sum(1 for n in count.values() if n)


def main():
    data = sys.stdin.read().split()
    n, limit = int(data[0]), int(data[1])
    values = list(map(int, data[2:2 + n]))
    best, kinds = solve(values, limit)
    print(best)
    print(kinds)


main()
"""
CPP = """\
#include <bits/stdc++.h>
using namespace std;
int main() {
    int n; long long limit; cin >> n >> limit;
    vector<long long> v(n); for (auto &x : v) cin >> x;
    map<long long, int> count; long long total = 0; int best = 0, left = 0;
    for (int right = 0; right < n; right++) {
        total += v[right]; count[v[right]]++;
        while (total > limit && left <= right) { total -= v[left]; count[v[left]]--; left++; }
        best = max(best, right - left + 1);
    }
    int kinds = 0; for (auto &item : count) kinds += item.second > 0;
    cout << best << "\\n" << kinds << "\\n";
}
"""
PREAMBLE = """\
from string import *; from re import *; from datetime import *; from collections import *; from heapq import *
from bisect import *; from copy import *; from math import *; from random import *; from statistics import *
from itertools import *; from functools import *; from operator import *; from typing import *
"""
FRESH = """\
import json, sys, io, contextlib
job = json.load(sys.stdin)
code = compile(job["source"], "main.py", "exec")
right = []
for given, wanted in job["tests"]:
    sys.stdin, out = io.StringIO(given), io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(code, {"__name__": "__main__"})
    right.append(out.getvalue().split() == wanted.split())
sys.__stdout__.write(json.dumps(right))
"""

FLOOR = """\
import os, resource, sys, time
import bisect, collections, dataclasses, enum, functools, heapq, itertools, json, math, random, re, string, typing
import ast, copy, io, marshal, threading, traceback
def used():
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(use.ru_utime + use.ru_stime for use in both)
count, before = int(sys.argv[1]), used()
for _ in range(count):
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
print((used() - before) / count * 1e3)
"""

Tests = list[tuple[str, str]]
Grader = Callable[[str, Tests], bool]


def make_tests(count: int) -> Tests:
    """Tests of the program above, each with another answer."""
    tests = []
    for k in range(count):
        values = [(7 * i + k) % 11 for i in range(20 + k)]
        given = f"{len(values)} {25 + k}\n{' '.join(map(str, values))}\n"
        sink = io.StringIO()
        run_inside(PYTHON, given, sink)
        tests.append((given, sink.getvalue()))
    return tests


def run_inside(source: str, given: str, sink: io.StringIO) -> None:
    """Run a program in this interpreter, as graders do that mock the streams."""
    before, sys.stdin = sys.stdin, io.StringIO(given)
    try:
        with contextlib.redirect_stdout(sink):
            exec(compile(source, "main.py", "exec"), {"__name__": "__main__"})
    finally:
        sys.stdin = before


def process_per_test(source: str, tests: Tests) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "main.py")
        path.write_text(source)
        for given, wanted in tests:
            done = subprocess.run(
                [sys.executable, str(path)], input=given, capture_output=True, text=True, timeout=TESTS_S, check=False
            )
            if done.stdout.split() != wanted.split():
                return False
    return True


def _run_lean(source: str, tests: Tests, right: list[bool]) -> None:
    for given, wanted in tests:
        sink = io.StringIO()
        run_inside(source, given, sink)
        right.append(sink.getvalue().split() == wanted.split())


def _run_mocked(source: str, tests: Tests, right: list[bool]) -> None:
    names: dict[str, object] = {"__name__": "__main__"}
    exec(PREAMBLE, names)
    code = compile(source, "main.py", "exec")
    for given, wanted in tests:
        stream, sink = io.StringIO(given), io.StringIO()
        lines = iter(given.split("\n"))
        with (
            mock.patch("builtins.open", mock.mock_open(read_data=given)),
            mock.patch("sys.stdin", stream),
            mock.patch("sys.stdin.readline", lambda *_, lines=lines: next(lines)),
            mock.patch("sys.stdin.readlines", lambda *_, given=given: given.split("\n")),
            mock.patch("sys.stdin.read", lambda *_, given=given: given),
            contextlib.redirect_stdout(sink),
        ):
            exec(code, dict(names))
        right.append(sink.getvalue().split() == wanted.split())


def manager_per_program(source: str, tests: Tests) -> bool:
    return _in_managed_process(_run_mocked, source, tests)


def lean_manager(source: str, tests: Tests) -> bool:
    return _in_managed_process(_run_lean, source, tests)


def _in_managed_process(run: Callable[..., None], source: str, tests: Tests) -> bool:
    context = multiprocessing.get_context("fork")
    with context.Manager() as manager:
        right = manager.list()
        process = context.Process(target=run, args=(source, tests, right))
        process.start()
        process.join(TESTS_S * len(tests))
        if process.is_alive():
            process.kill()
        return len(right) == len(tests) and all(right)


def fresh_interpreter(source: str, tests: Tests) -> bool:
    job = json.dumps({"source": PREAMBLE + source, "tests": tests})
    done = subprocess.run(
        [sys.executable, "-c", FRESH], input=job, capture_output=True, text=True, timeout=60, check=False
    )
    right = json.loads(done.stdout)
    return len(right) == len(tests) and all(right)


def jailed(judge: Judge, language: str = "python") -> Grader:
    def grade(source: str, tests: Tests) -> bool:
        problem = Problem("bench", "stdio", tuple(Case(given, wanted) for given, wanted in tests))
        return judge.judge(problem, Program(source, language)).verdict is Verdict.AC

    return grade


def cpu_s(root: int) -> float:
    """CPU seconds so far of this process, of those it has waited for, and of the living tree of ``root`` likewise."""
    own = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(use.ru_utime + use.ru_stime for use in own) + tree_s(root)


def tree_s(pid: int) -> float:
    """CPU seconds of a process, of those it has waited for, and of those below it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0  # it has ended meanwhile, and its parent has its time
    return sum(map(int, fields[11:15])) / TICKS + sum(tree_s(int(child)) for child in children)


def timed(grade: Grader, source: str, tests: Tests, root: int) -> tuple[float, float]:
    """Wall and CPU time, ms."""
    before, start = cpu_s(root), time.perf_counter()
    right = grade(source, tests)
    wall, cpu = time.perf_counter() - start, cpu_s(root) - before
    if not right:
        raise SystemExit(f"{getattr(grade, '__name__', grade)} did not accept the reference program")
    return wall * 1e3, cpu * 1e3


def compare_python(judge: Judge, rounds: int) -> None:
    graders: dict[str, Grader] = {
        "jail": jailed(judge),
        "process": process_per_test,
        "manager": manager_per_program,
        "fresh": fresh_interpreter,
        "lean": lean_manager,
    }
    root = judge.jail.process.pid
    print("Python, ms per program        " + "".join(f"{name:>10}" for name in graders))
    ours = {}
    for size in SIZES:
        tests = make_tests(size)
        rows: list[list[tuple[float, float]]] = []
        for k in range(rounds + 1):  # the first round warms caches and is dropped
            source = f"{PYTHON}# {k}\n"
            rows.append([timed(grade, source, tests, root) for grade in graders.values()])
        columns = list(zip(*rows[1:], strict=True))
        walls = [statistics.median(wall for wall, _ in column) for column in columns]
        cpus = [statistics.mean(cpu for _, cpu in column) for column in columns]
        ratios = [statistics.median(row[i][0] / row[0][0] for row in rows[1:]) for i in range(len(graders))]
        label = f"{size} test{'s' if size > 1 else ''}"
        print(f"  {label + ', wall':<28}" + "".join(f"{ms:10.2f}" for ms in walls))
        print(f"  {'the rival takes, times ours':<28}" + "".join(f"{ratio:10.2f}" for ratio in ratios))
        print(f"  {label + ', CPU':<28}" + "".join(f"{ms:10.2f}" for ms in cpus))
        print(f"  {'ours takes, times the rival':<28}" + "".join(f"{cpus[0] / ms:10.2f}" for ms in cpus))
        ours[size] = cpus[0]
    more, most = SIZES[-2:]
    print(f"Python, CPU ms per further test: {(ours[most] - ours[more]) / (most - more):.2f}, "
          f"where a fork of the same interpreter and its end take {fork_ms():.2f}")  # fmt: skip


def fork_ms(count: int = 300) -> float:
    """CPU time of a fork, as warm as the jail's, that ends at once: below this no process per test can be."""
    done = subprocess.run(
        [sys.executable, "-S", "-c", FLOOR, str(count)], capture_output=True, text=True, timeout=60, check=True
    )
    return float(done.stdout)


def compiled(judge: Judge, source: str) -> Build:
    case = Case("", "-")
    return judge.builder.build(
        judge.jail, compose(find_language("cpp"), Problem("bench", "stdio", (case,)), source, case)
    )


def compare_native(judge: Judge, rounds: int) -> None:
    size = SIZES[1]
    tests = make_tests(size)
    build = compiled(judge, CPP)
    if build.artefact is None:
        raise SystemExit(f"the C++ program does not compile: {build.log}")
    path = Path(judge.builder.directory, "plain")
    path.write_bytes(build.artefact)
    path.chmod(0o700)
    binary = str(path)

    def plain(source: str, tests: Tests) -> bool:
        return all(
            subprocess.run([binary], input=given, capture_output=True, text=True, check=False).stdout.split()
            == wanted.split()
            for given, wanted in tests
        )

    graders, root = (jailed(judge, "cpp"), plain), judge.jail.process.pid
    rows = [[timed(grade, CPP, tests, root)[0] for grade in graders] for _ in range(rounds + 1)][1:]
    ours, theirs = (statistics.median(row[i] / size for row in rows) for i in (0, 1))
    print(f"Native, ms per test           jail {ours:.2f} (fastest round {min(r[0] for r in rows) / size:.2f}), "
          f"subprocess.run without a jail {theirs:.2f}")  # fmt: skip


def compare_compiler(judge: Judge, rounds: int) -> None:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for k in range(rounds):
            source = f"{CPP}// {os.getpid()} {k}\n"
            path = Path(folder, "main.cpp")
            path.write_text(source)
            stamps = [time.perf_counter()]
            subprocess.run(["g++", "-O2", "-o", f"{folder}/main", str(path)], check=True)
            stamps.append(time.perf_counter())
            for _ in range(2):
                compiled(judge, source)
                stamps.append(time.perf_counter())
            rows.append([(b - a) * 1e3 for a, b in pairwise(stamps)])
    plain, cold, cached = (statistics.median(column) for column in zip(*rows, strict=True))
    print(f"C++ with bits/stdc++.h, ms    g++ -O2 {plain:.0f}, ours cold {cold:.0f} ({cold / plain:.2f} of it), "
          f"cached {cached:.2f} ({cached / plain:.2%} of it)")  # fmt: skip


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="rounds per size (15)")
    parser.add_argument("--compiles", type=int, default=3, help="rounds of compiling (3); 0 for none")
    parser.add_argument("--isolation", default="auto", choices=("auto", "A", "B", "C"))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        builder = Builder(folder)
        with Jail(args.isolation, shared=builder.shared) as jail:
            judge = Judge(jail, builder)
            print(f"tier {jail.tier}, {args.rounds} rounds, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
            compare_python(judge, args.rounds)
            compare_native(judge, args.rounds)
            if args.compiles:
                compiled(judge, CPP)  # makes the header that is compiled ahead
                compare_compiler(judge, args.compiles)


if __name__ == "__main__":
    main()
