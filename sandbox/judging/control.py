"""Decide who is at fault when judges die: a control program, the language's own sample, is judged in the same way.

If every judge dies under a program, before and after the control program was judged correctly, the program killed them
and gets a verdict; otherwise it could pass its failure off as the sandbox's. `errors.Deaths` says how many deaths
count.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from sandbox.core.checks import printable
from sandbox.core.nouns import Case, CaseResult, Judgement, Limits, Program, Verdict
from sandbox.core.problem import Problem
from sandbox.errors import TookDown
from sandbox.languages.language import Language

TOOK_DOWN: Final = "took down its judge"
_PROBLEM: Final = Problem("control", "stdio", (Case("3 4\n", "7"),), limits=Limits(cpu_s=10.0))


def sample(language: Language) -> tuple[Problem, Program]:
    """Return the control program and its problem."""
    return _PROBLEM, Program(language.samples.adds, language.name)


def take_down(problem: Problem, control: Judgement, error: TookDown) -> Judgement:
    """Return the judgement of a program under which judges died before the control program and after it, the last by
    `error`. Raises `error` where the sandbox may be at fault. The case is unknown, so each has this result.
    """
    if control.verdict is not Verdict.AC:
        raise error
    message = printable(f"{TOOK_DOWN}, whenever it was tried: {error}")
    return replace(
        control,
        problem_id=problem.id,
        verdict=Verdict.RE,
        cases=tuple(CaseResult(n, Verdict.RE, 0.0, 0.0, 0, message[:300]) for n in range(len(problem.cases))),
        passed=0,
        total=len(problem.cases),
        compile_log="",
        queue_s=0.0,
        run_s=0.0,
        earned=0.0 if problem.subtasks else None,
    )
