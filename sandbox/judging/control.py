"""Whose fault is it that a judge dies? A control program tells: the language's own sample, judged by the same means.

A program under which every judge died, before the control was judged well and after it, is what kills them: that is its
verdict, for else it could have its failure taken for ours. Before and after it, for three deaths may be chance. How
many there must be says `errors.Deaths`.
"""

from __future__ import annotations

from typing import Final

from sandbox.core import Case, CaseResult, Judgement, Limits, Problem, Program, Verdict, printable
from sandbox.errors import TookDown
from sandbox.languages import Language

TOOK_DOWN: Final = "took down its judge"
_PROBLEM: Final = Problem("control", "stdio", (Case("3 4\n", "7"),), limits=Limits(cpu_s=10.0))


def sample(language: Language) -> tuple[Problem, Program]:
    """The control."""
    return _PROBLEM, Program(language.samples.adds, language.name)


def take_down(problem: Problem, control: Judgement, error: TookDown) -> Judgement:
    """The judgement of a program under which judges died before the control and after it, the last by `error`.

    Raises that where it may be ours.

    Which case it was is not known: its one CaseResult stands for the first.
    """
    if control.verdict is not Verdict.AC:
        raise error
    message = printable(f"{TOOK_DOWN}, whenever it was tried: {error}")
    return Judgement(
        problem_id=problem.id,
        verdict=Verdict.RE,
        cases=(CaseResult(0, Verdict.RE, 0.0, 0.0, 0, message[:300]),),
        passed=0,
        total=len(problem.cases),
        weak=False,
        tier=control.tier,
        language=control.language,
        toolchain=control.toolchain,
        compile_log="",
        queue_s=0.0,
        run_s=0.0,
        earned=0.0 if problem.subtasks else None,
    )
