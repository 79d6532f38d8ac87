"""How fast a grader of ``_peer_rewards`` is: a program for its own environment, which prints a line of JSON."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from concurrent.futures import ProcessPoolExecutor

import _peer_rewards
from graders import tree_s

from sandbox.core.nouns import Case
from sandbox.core.problem import Problem

Task = tuple[dict[str, object], str]


def graded(name: str, tasks: list[Task]) -> tuple[float, float]:
    """CPU seconds of a process that grades ``tasks``, its children included, and the most memory of one, bytes."""
    grade = getattr(_peer_rewards, name)
    grade(*tasks[0], "python")  # starts what it keeps
    before = tree_s(os.getpid())
    for problem, program in tasks:
        if grade(problem, program, "python") != 1.0:
            raise SystemExit(f"{name} does not accept a right program:\n{program}")
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return tree_s(os.getpid()) - before, peak * 1024.0


def right_programs(count: int) -> list[Task]:
    """A right function of two tests, which every grader accepts, each with another last line."""
    problem = Problem("double", "function", (Case("[1]", "2"), Case("[21]", "42")), fn_name="f").to_json()
    return [(problem, f"def f(x):\n    return 2 * x\n# {os.getpid()} {number}\n") for number in range(count)]


def main() -> None:
    name, count = sys.argv[1], int(sys.argv[2])
    cores = len(os.sched_getaffinity(0))
    parts = [right_programs(count) for _ in range(cores)]
    with ProcessPoolExecutor(cores) as pool:
        list(pool.map(graded, [name] * cores, [part[:1] for part in parts]))  # starts the processes
        began_s = time.perf_counter()
        found = list(pool.map(graded, [name] * cores, parts))
        seconds = time.perf_counter() - began_s
    judged = sum(map(len, parts))
    figures = {"cpu_ms": sum(cpu for cpu, _ in found) / judged * 1e3, "per_s": judged / seconds}
    print(json.dumps(figures | {"peak_mib": max(peak for _, peak in found) / 2**20}))


if __name__ == "__main__":
    main()
