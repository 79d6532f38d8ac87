"""A case in several runs of the program: what the checker or the interactor leaves is the input of the next.

    run the program ─▶ the referee accepts, and left nextpass.in? ─▶ run it again with that ─▶ ...

Time and memory are limited for each run; the CaseResult has those of the most costly one. All other files of the
feedback directory are there for the next run of the referee.
"""

from __future__ import annotations

from dataclasses import replace

from sandbox.core import Case, CaseResult, Problem, Verdict
from sandbox.jail import RunResult
from sandbox.judging import interactive
from sandbox.judging.prepared import PreparedProgram, encode_files
from sandbox.judging.referee import NEXT_PASS, Referee
from sandbox.judging.verdicts import Decision, case_result, decide_ending


def run_all_passes(problem: Problem, prepared: PreparedProgram, referee: Referee, index: int) -> CaseResult:
    """All runs of a case. Raises CompileError, CheckerError, SandboxError.

    A referee that asks for too many may have been brought to it, as to a crash: see referee.py.
    """
    case = problem.cases[index]
    runs: list[CaseResult] = []
    for left in reversed(range(problem.passes)):
        referee.left = left
        runs.append(case_result(index, *_pass(problem, prepared, referee, case)))
        following = referee.feedback.pop(NEXT_PASS, None) if runs[-1].verdict is Verdict.AC else None
        if following is None:
            return _together(runs, referee)
        referee.again = True
        case = replace(case, input=following.decode("utf-8", "surrogateescape"))
    raise AssertionError("in the last run the referee's wish for another is its failure")


def _pass(problem: Problem, prepared: PreparedProgram, referee: Referee, case: Case) -> tuple[RunResult, Decision]:
    if problem.kind == "interactive":
        return interactive.run_interactive(prepared, referee, problem.limits, case)
    files = encode_files(case.files)
    stdin = case.input.encode("utf-8", "surrogateescape")
    done, frame = prepared.run(problem.limits, stdin, arguments=case.arguments, files=files)
    ending = decide_ending(done, frame, problem.limits, prepared.language)
    return done, ending or referee.check(case, done.stdout)


def _together(runs: list[CaseResult], referee: Referee) -> CaseResult:
    most = {name: max(getattr(run, name) for run in runs) for name in ("cpu_s", "wall_s", "memory_bytes")}
    message = runs[-1].message
    if message and len(runs) > 1:
        message = f"run {len(runs)}: {message}"
    return replace(runs[-1], **most, message=message, feedback=referee.notes())
