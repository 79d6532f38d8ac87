"""Measure milliseconds per program, isolated and warm.

Each figure is the median over `rounds` programs; a busy machine shows higher figures.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any

from sandbox.build.builder import Builder
from sandbox.core.nouns import Case, Isolation, Program, Verdict
from sandbox.core.problem import Problem
from sandbox.errors import SandboxError, ToolchainMissing
from sandbox.jail.jail import Jail
from sandbox.judging.judge import Judge

_PYTHON = "print(sum(map(int, input().split())))"
_CPP = '#include <cstdio>\nint main() { int a, b; std::scanf("%d %d", &a, &b); std::printf("%d\\n", a + b); }'


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the benchmark; `ms` is None where a toolchain is missing, and `note` says which."""

    name: str
    ms: float | None
    note: str = ""


def measure_languages(isolation: Isolation = "auto", rounds: int = 30) -> dict[str, Any]:
    """Return {"tier", "rounds", "figures"}. Raises SandboxError when a benchmark program is not accepted."""
    start = time.perf_counter()
    with Jail(isolation) as jail:
        figures = [Figure("start a jail", (time.perf_counter() - start) * 1e3)]
        judge = Judge(jail, Builder(f"{jail.directory}/build"))
        figures += [_figure(f"python, {n} tests", judge, "python", _PYTHON, n, rounds) for n in (1, 15)]
        try:
            compiled = time.perf_counter()
            _judge(judge, "cpp", _CPP, 1)
            figures.append(Figure("c++, compile", (time.perf_counter() - compiled) * 1e3))
            figures += [_figure(f"c++ compiled, {n} tests", judge, "cpp", _CPP, n, rounds) for n in (1, 15)]
        except ToolchainMissing as error:
            figures.append(Figure("c++", None, str(error)))
        return {"tier": jail.tier, "rounds": rounds, "figures": figures}


def _figure(name: str, judge: Judge, language: str, source: str, tests: int, rounds: int) -> Figure:
    taken = []
    for _ in range(rounds):
        start = time.perf_counter()
        _judge(judge, language, source, tests)
        taken.append(time.perf_counter() - start)
    return Figure(name, statistics.median(taken) * 1e3)


def _judge(judge: Judge, language: str, source: str, tests: int) -> None:
    cases = tuple(Case(f"{n} {n}\n", str(2 * n)) for n in range(tests))
    done = judge.judge(Problem("bench", "stdio", cases), Program(source, language))
    if done.verdict is not Verdict.AC:
        raise SandboxError(f"the benchmark's own {language} program was judged {done.verdict}: {done.compile_log}")
