"""Program × Problem → Judgement, outside every jail.

    prepare (once) ─▶ for each case: run in the jail ─▶ verdicts.py's questions, in their order ─▶ CaseResult

Who answers the last question, "is it right?": a comparison here, the checker in a run of its own after the program's,
or the interactor in a second jail at the same time.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from dataclasses import dataclass

from sandbox import asserts, interactive, referee
from sandbox.build import Builder
from sandbox.core import Case, CaseResult, Isolation, Judgement, Problem, Program, Verdict
from sandbox.errors import InvalidProblem
from sandbox.jail import Jail
from sandbox.languages import Language, find, toolchain
from sandbox.prepared import CompileError, Prepared
from sandbox.verdicts import ACCEPTED, Decision, case_result, decide_ending, decide_limits, decide_output, decide_values


@dataclass(frozen=True, slots=True)
class Judge:
    """A jail and a builder, ready for one program after the other."""

    jail: Jail
    builder: Builder
    stop_at_first_failure: bool = True
    """After a failed case, skip the rest of its subtask; without subtasks, the rest."""
    cancel_fd: int | None = None

    def judge(self, problem: Problem, program: Program) -> Judgement:
        """Raises SandboxError for our faults only."""
        start = time.monotonic()
        language = find(program.language)
        _check_kind(problem, language)
        results: list[CaseResult] = []
        log, weak = "", False
        tools = toolchain(language)
        try:
            with ExitStack() as stack:
                prepared = stack.enter_context(
                    Prepared(self.jail, self.builder, program, preamble=problem.preamble, cancel_fd=self.cancel_fd)
                )
                log = prepared.log
                decider = self._decider(problem)
                if decider is not None:
                    stack.enter_context(decider)
                results, weak = self._run_cases(problem, prepared, decider)
            verdict = next((done.verdict for done in results if done.verdict is not Verdict.AC), Verdict.AC)
        except CompileError as error:
            results, log, verdict = [], str(error), Verdict.CE
        return Judgement(
            problem_id=problem.id,
            verdict=verdict,
            cases=tuple(results),
            passed=sum(done.verdict is Verdict.AC for done in results),
            total=len(problem.cases),
            weak=weak,
            tier=self.jail.tier,
            language=language.name,
            toolchain=tools,
            compile_log=log,
            queue_s=0.0,
            run_s=time.monotonic() - start,
            score=_score(problem, results),
        )

    def _decider(self, problem: Problem) -> referee.Referee | None:
        """Whoever decides besides us, from the problem's author."""
        program = problem.checker or problem.interactor
        if program is None:
            return None
        jail, role = (self.jail, "checker") if problem.checker else (self.jail.partner(), "interactor")
        prepared = Prepared(jail, self.builder, program, cancel_fd=self.cancel_fd)
        return referee.Referee(prepared, problem.convention, role)

    def _run_cases(
        self, problem: Problem, prepared: Prepared, decider: referee.Referee | None
    ) -> tuple[list[CaseResult], bool]:
        results: list[CaseResult] = []
        failed: set[str | None] = set()
        weak = False
        for index, case in enumerate(problem.cases):
            if self.stop_at_first_failure and case.group in failed:
                continue
            done, case_weak = _run_case(problem, prepared, decider, index, case)
            results.append(done)
            weak |= case_weak
            if done.verdict is not Verdict.AC:
                failed.add(case.group)
        return results, weak


def run_once(
    problem: Problem, program: Program, *, isolation: Isolation = "auto"
) -> tuple[CaseResult, bytes, bytes, str]:
    """Run a program on a stdio problem's first case without comparing: result, stdout, stderr, tier."""
    with Jail(isolation) as jail:
        builder = Builder(os.path.join(jail.directory, "build"))
        try:
            with Prepared(jail, builder, program, preamble=problem.preamble) as prepared:
                done, frame = prepared.run(problem.limits, _encode(problem.cases[0].input))
        except CompileError as error:
            return CaseResult(0, Verdict.CE, 0.0, 0.0, 0, "does not compile"), b"", str(error).encode(), jail.tier
        decision = decide_ending(done, frame, problem.limits) or ACCEPTED
        return case_result(0, done, decision), done.stdout, done.stderr, jail.tier


def _check_kind(problem: Problem, language: Language) -> None:
    needed = "stdio" if problem.kind == "interactive" else problem.kind
    if needed not in language.kinds:
        raise InvalidProblem(
            f"problem {problem.id!r}: kind={problem.kind!r} cannot be judged in {language.name}; "
            f"use {' or '.join(language.kinds)}"
        )


def _run_case(
    problem: Problem, prepared: Prepared, decider: referee.Referee | None, index: int, case: Case
) -> tuple[CaseResult, bool]:
    """One case in a fresh process; the flag is `weak`. Raises CompileError, SandboxError."""
    limits = problem.limits
    if problem.kind in ("function", "assert"):
        plan = asserts.plan(case.input) if problem.kind == "assert" else None
        args = case.input if problem.kind == "function" else None
        steps = plan.steps if plan else ()
        job = {"kind": problem.kind, "fn_name": problem.fn_name, "args": args, "steps": steps}
        done, frame = prepared.run(limits, job=job)
        decision = decide_limits(done, limits) or decide_values(problem, case, plan, done, frame)
        return case_result(index, done, decision), plan is not None and plan.weak
    if problem.kind == "interactive":
        assert decider is not None
        done, decision = interactive.converse(prepared, decider, limits, case)
        return case_result(index, done, decision), False
    done, frame = prepared.run(limits, _encode(case.input))
    ending: Decision | None = decide_ending(done, frame, limits)
    if ending is None and decider is not None:
        ending = decider.check(case, done.stdout)
    return case_result(index, done, ending or decide_output(problem, case, done)), False


def _score(problem: Problem, results: list[CaseResult]) -> float:
    """A subtask's points are earned when all its cases ran and passed."""
    passed = {done.index for done in results if done.verdict is Verdict.AC}
    if not problem.subtasks:
        return len(passed) / len(problem.cases)
    failed = {case.group for index, case in enumerate(problem.cases) if index not in passed}
    earned = sum(subtask.points for subtask in problem.subtasks if subtask.name not in failed)
    return earned / sum(subtask.points for subtask in problem.subtasks)


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
