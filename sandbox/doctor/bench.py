"""Measure milliseconds per program, isolated and warm.

Each figure is the median over `rounds` programs; a busy machine shows higher figures.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

from sandbox.build.builder import Builder
from sandbox.core.nouns import Case, Isolation, Program, Verdict
from sandbox.core.problem import Problem
from sandbox.errors import SandboxError, ToolchainMissing
from sandbox.jail.jail import Jail
from sandbox.judging.judge import Judge

_PYTHON = "print(sum(map(int, input().split())))"
_CPP = '#include <cstdio>\nint main() { int a, b; std::scanf("%d %d", &a, &b); std::printf("%d\\n", a + b); }'


def measure_languages(isolation: Isolation = "auto", rounds: int = 30) -> dict[str, Any]:
    """Return {"tier", "rounds", "figures": [{"name", "ms", "note"}]}; "ms" is None where a toolchain is missing, and
    the note says which. Raises SandboxError when a benchmark program is not accepted.
    """
    figures: list[dict[str, Any]] = []

    def add(name: str, ms: float | None, note: str = "") -> None:
        figures.append({"name": name, "ms": ms, "note": note})

    start = time.perf_counter()
    with Jail(isolation) as jail:
        add("start a jail", (time.perf_counter() - start) * 1e3)
        judge = Judge(jail, Builder(f"{jail.directory}/build"))
        for tests in (1, 15):
            add(f"python, {tests} tests", _median_ms(judge, "python", _PYTHON, tests, rounds))
        try:
            add("c++, compile", _ms(judge, "cpp", _CPP, 1))
            for tests in (1, 15):
                add(f"c++ compiled, {tests} tests", _median_ms(judge, "cpp", _CPP, tests, rounds))
        except ToolchainMissing as error:
            add("c++", None, str(error))
        return {"tier": jail.tier, "rounds": rounds, "figures": figures}


def _median_ms(judge: Judge, language: str, source: str, tests: int, rounds: int) -> float:
    return statistics.median(_ms(judge, language, source, tests) for _ in range(rounds))


def _ms(judge: Judge, language: str, source: str, tests: int) -> float:
    start = time.perf_counter()
    cases = tuple(Case(f"{n} {n}\n", str(2 * n)) for n in range(tests))
    done = judge.judge(Problem("bench", "stdio", cases), Program(source, language))
    if done.verdict is not Verdict.AC:
        raise SandboxError(f"the benchmark's own {language} program was judged {done.verdict}: {done.compile_log}")
    return (time.perf_counter() - start) * 1e3
