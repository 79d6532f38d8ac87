"""Judge programs that a model wrote, treating each as hostile. Standard library only.

    import sandbox

    problem = sandbox.Problem("sum", "stdio", (sandbox.Case("3 4\\n", "7"),))
    judgement = sandbox.judge(problem, sandbox.Program("print(sum(map(int, input().split())))"))
    judgement.verdict                      # AC WA TLE MLE OLE RE CE SEC: what the program did
                                           # raises SandboxError where the sandbox itself failed

The author of the problem is trusted, the program is not: docs/sandbox/threat-model.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sandbox.client.client import Client
    from sandbox.core.excerpt import Excerpt
    from sandbox.core.nouns import Case, CaseResult, Isolation, Judgement, Limits, Program, Subtask, Verdict
    from sandbox.core.problem import Problem
    from sandbox.core.program_run import ProgramRun
    from sandbox.differences import diff_lines, failure_lines
    from sandbox.errors import (
        CheckerError,
        InvalidProblem,
        InvalidProgram,
        IsolationUnavailable,
        SandboxError,
        ToolchainMissing,
        WrongType,
    )
    from sandbox.pool.counts import PoolStats
    from sandbox.pool.pool import Pool
else:  # imported on first use: a command must handle signals before it imports what takes time
    from sandbox.lazy import names

    __getattr__ = names(__name__)

__all__ = [
    "Case",
    "CaseResult",
    "CheckerError",
    "Client",
    "Excerpt",
    "InvalidProblem",
    "InvalidProgram",
    "IsolationUnavailable",
    "Judgement",
    "Limits",
    "Pool",
    "PoolStats",
    "Problem",
    "Program",
    "ProgramRun",
    "SandboxError",
    "Subtask",
    "ToolchainMissing",
    "Verdict",
    "WrongType",
    "diff_lines",
    "failure_lines",
    "judge",
]


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


def judge(
    problem: Problem | Mapping[str, Any],
    program: Program | str | Mapping[str, Any],
    *,
    stop_at_first_failure: bool = True,
    isolation: Isolation = "auto",
    packages: Sequence[str] = (),
) -> Judgement:
    """Judge one program in its own jail and wait for the result; for more than a few programs use a Pool.

    `problem` may be a mapping as in problem.json, `program` a source in the problem's language; what is neither raises
    WrongType, a TypeError that names argument and form.
    `packages` of this interpreter (("numpy",)) are importable by a Python program. Raises SandboxError for failures of
    the sandbox; what the program does wrong is in the Judgement, even if it kills every judge.
    """
    from sandbox.build.builder import Builder
    from sandbox.core.problem import Problem
    from sandbox.errors import TookDown
    from sandbox.judging import control
    from sandbox.judging.control import in_fresh_jails
    from sandbox.judging.judge import Judge
    from sandbox.languages.table import find_language

    problem = Problem.of(problem)
    program = problem.program(program)

    def tried(problem: Problem, program: Program) -> Judgement:
        return in_fresh_jails(
            lambda jail: Judge(jail, Builder(f"{jail.directory}/build"), stop_at_first_failure).judge(problem, program),
            isolation,
            packages=packages,
        )

    done: Judgement | None = None
    while True:
        try:
            return tried(problem, program)
        except TookDown as error:
            if done is not None:
                return control.take_down(problem, done, error)
        done = tried(*control.sample(find_language(program.language)))
