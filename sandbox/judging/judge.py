"""Program × Problem → Judgement, outside every jail.

    prepare (once) ─▶ for each case: run in the jail ─▶ verdicts.py's questions, in their order ─▶ CaseResult

Who answers the last question, "is it right?": a comparison here, or the author's program in a second jail, where no
judged program ever runs: a checker after the program, an interactor at the same time.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from sandbox.build.builder import Builder
from sandbox.compare.values import loads
from sandbox.core.checks import printable
from sandbox.core.excerpt import Excerpt
from sandbox.core.nouns import Case, CaseResult, Isolation, Judgement, Program, Verdict, drop_later_excerpts
from sandbox.core.problem import Problem
from sandbox.errors import InvalidProblem
from sandbox.jail.jail import Jail
from sandbox.jail.run import RunResult
from sandbox.judging import apart, interactive, python_asserts
from sandbox.judging.control import in_fresh_jails
from sandbox.judging.interrupt import cancellable
from sandbox.judging.prepared import Frame, PreparedProgram
from sandbox.judging.referee import NEXT_PASS, Referee
from sandbox.judging.single_run import run_program
from sandbox.judging.verdicts import (
    ACCEPTED,
    Decision,
    case_result,
    decide_ending,
    decide_output,
    decide_values,
)
from sandbox.languages import toolchain
from sandbox.languages.language import Language
from sandbox.languages.layout import CompileError
from sandbox.languages.table import find_language

_WEAK_PLAN: Final = python_asserts.Plan((), (), weak=True)


@dataclass(frozen=True, slots=True)
class Judge:
    """A jail and a builder that judge one program after the other."""

    jail: Jail
    builder: Builder
    stop_at_first_failure: bool = True
    """After a failed case, skip the rest of its subtask; without subtasks, the rest."""
    cancel_fd: int | None = None
    only: int | None = None
    """Run this case alone: another worker runs the others."""
    wanted: Callable[[int, Sequence[CaseResult]], bool] | None = None
    """Called before a case with the results so far; returns whether to run it. Instead of stop_at_first_failure."""

    def judge(self, problem: Problem, program: Program) -> Judgement:
        """Judge a program. Raises SandboxError for failures of the sandbox."""
        start = time.monotonic()
        language = find_language(program.language)
        _check_kind(problem, program, language)
        results: list[CaseResult] = []
        log, compile_cause, weak = "", "", False
        tools = toolchain.toolchain(language)
        try:
            with ExitStack() as stack:
                prepared = stack.enter_context(
                    PreparedProgram(self.jail, self.builder, program, problem, cancel_fd=self.cancel_fd)
                )
                log = prepared.log
                decider = self._decider(problem)
                if decider is not None:
                    stack.enter_context(decider)
                results, weak = self._run_cases(problem, prepared, decider)
            verdict = next((done.verdict for done in results if done.verdict is not Verdict.AC), Verdict.AC)
            if verdict is Verdict.WA:  # a process that the program started may have been killed
                self.jail.check_memory()
        except CompileError as error:
            results, log, verdict, compile_cause = [], str(error), Verdict.CE, error.cause
        return Judgement(
            problem_id=problem.id,
            verdict=verdict,
            cases=drop_later_excerpts(results),
            passed=sum(done.verdict is Verdict.AC for done in results),
            total=len(problem.cases),
            weak=weak,
            tier=self.jail.tier,
            language=language.name,
            toolchain=tools,
            compile_log=printable(log, "\n\t"),
            queue_s=0.0,
            run_s=time.monotonic() - start,
            earned=_earned(problem, results),
            compile_cause=compile_cause,
        )

    def _decider(self, problem: Problem) -> Referee | None:
        """Return the checker or interactor, if the problem has one."""
        program = problem.checker or problem.interactor
        if program is None:
            return None
        jail = self.jail.partner(fixed_hashes=False)
        prepared = PreparedProgram(jail, self.builder, program, decides=True, cancel_fd=self.cancel_fd)
        return Referee(prepared, problem, "checker" if problem.checker else "interactor")

    def _run_cases(
        self, problem: Problem, prepared: PreparedProgram, decider: Referee | None
    ) -> tuple[list[CaseResult], bool]:
        order = range(len(problem.cases)) if self.only is None else (self.only,)
        course = _Course(problem, prepared, decider, order[-1])
        results: list[CaseResult] = []
        failed: set[str | None] = set()
        for index in order:
            if self.wanted is not None:
                if not self.wanted(index, results):
                    continue
            elif self.stop_at_first_failure and problem.cases[index].group in failed:
                continue
            results.append(course.run(index))
            if results[-1].verdict is not Verdict.AC:
                failed.add(problem.cases[index].group)
        return results, course.weak


@dataclass
class _Course:
    """The cases of one program, each in a fresh process."""

    problem: Problem
    prepared: PreparedProgram
    decider: Referee | None
    last: int
    """The case after which nothing more is run."""
    weak: bool = False
    """A case was accepted on a completion token."""
    _ahead: deque[tuple[int, python_asserts.Plan | None]] = field(default_factory=deque)
    _plans: dict[int, python_asserts.Plan] = field(default_factory=dict)
    """Plans of assert problems in Python, by case."""

    def run(self, index: int) -> CaseResult:
        """Run one case. Raises CompileError, SandboxError."""
        if self.decider is None:
            return self._run(index)
        self.decider.begin()
        if self.problem.passes > 1:
            return run_all_passes(self.problem, self.prepared, self.decider, index)
        return replace(self._run(index), feedback=self.decider.notes())

    def _run(self, index: int) -> CaseResult:
        case, limits = self.problem.cases[index], self.problem.limits
        if self.problem.kind == "interactive":
            assert self.decider is not None
            return case_result(index, *interactive.run_interactive(self.prepared, self.decider, limits, case))
        if self._ahead and self._ahead[0][0] != index:
            self._drop_ahead()
        if (tried := self._try_apart(index)) is not None:
            return tried
        plan = self._ahead.popleft()[1] if self._ahead else self._start(index)
        self._start_ahead(index)
        done, frame = self.prepared.finish()
        self._check_preamble(frame)
        if plan is not None and plan.instead is not None and frame is not None and frame.get("stage") == "value":
            self._drop_ahead()
            self._plans[index] = plan.instead
            return self._run(index)
        if self.problem.kind != "stdio":
            with cancellable(self.prepared.cancel_fd, len(done.result)):
                decision, said = decide_values(self.problem, case, plan, done, frame, self.prepared.language)
                self.weak |= plan is not None and plan.weak and decision == ACCEPTED
                return case_result(index, _own_end(done, frame), decision, said)
        ending: Decision | None = decide_ending(done, frame, limits, self.prepared.language)
        if ending is None and self.decider is not None:
            ending = self.decider.check(case, done.stdout)
        with cancellable(self.prepared.cancel_fd, len(done.stdout)):
            return case_result(index, done, ending or decide_output(self.problem, case, done), done.stdout)

    def _drop_ahead(self) -> None:
        self.prepared.drop()
        self._ahead.clear()

    def _start_ahead(self, index: int) -> None:
        """Start runs ahead: while the judge looks at one case the jail runs the next, as many as have passed so far,
        because in most programs the first case fails. Results of several runs come together, since each wait for the
        jail costs both sides.
        """
        if len(self._ahead) > 1 or self._alone:
            return
        end = min(index + min(index, self.prepared.jail.ahead), self.last)
        for later in range(index + 1 + len(self._ahead), end + 1):
            self._ahead.append((later, self._start(later, hold=later not in (end - 1, self.last))))

    @cached_property
    def _alone(self) -> bool:
        """True when no run is started ahead: compilers, or tests in jails of their own, run between the cases."""
        plans = map(self._plan, range(len(self.problem.cases)))
        return self._compiles_each or any(plan is not None and plan.apart is not None for plan in plans)

    @property
    def _compiles_each(self) -> bool:
        """True when the asserts are compiled with the program, so that a compiler runs between two runs."""
        return self.problem.kind == "assert" and not self.prepared.language.warm

    def _try_apart(self, index: int) -> CaseResult | None:
        """Judge a case whose test has a jail of its own; None where that decides nothing."""
        plan = self._plan(index)
        if plan is None or (what := plan.apart) is None:
            return None
        talk = apart.run_apart(self.prepared, self.problem, self.problem.cases[index], what)
        self._check_preamble(talk[1])
        decision = apart.decide(talk, what, self.problem.limits, self.prepared.language)
        return None if decision is None else case_result(index, _own_end(*talk[:2]), decision)

    def _check_preamble(self, frame: Frame | None) -> None:
        """Check the preamble. Raises InvalidProblem where it fails in a run of its own as well.

        A program can report a failure of the preamble falsely: of a compiled language, whose harness never does, too.
        """
        if frame is None or frame.get("stage") != "preamble" or not self.prepared.language.warm:
            return
        self._drop_ahead()
        alone = PreparedProgram(self.prepared.jail, self.prepared.builder, Program("import sys"), self.problem)
        alone.cancel_fd = self.prepared.cancel_fd
        with alone:
            said = alone.run(self.problem.limits)[1]
        if said is not None and said.get("stage") == "preamble":
            raise InvalidProblem(f"problem {self.problem.id!r}: preamble: fails without a program: {said.get('error')}")

    def _plan(self, index: int) -> python_asserts.Plan | None:
        """Return how a case's asserts are judged; None for another kind of problem."""
        if self.problem.kind != "assert":
            return None
        if self._compiles_each:
            return _WEAK_PLAN
        if index not in self._plans:
            case = self.problem.cases[index]
            self._plans[index] = python_asserts.plan_asserts(case.input, self.problem.preamble, self.problem.fn_name)
        return self._plans[index]

    def _start(self, index: int, *, hold: bool = False) -> python_asserts.Plan | None:
        """Start a case in the jail."""
        case, kind = self.problem.cases[index], self.problem.kind
        left = 0 if index == 0 or self._alone else self.last - index + 1
        if kind == "stdio":
            self.prepared.start_case(self.problem.limits, case, left=left, hold=hold)
            return None
        plan = self._plan(index)
        if self._compiles_each:
            self.prepared.build(case)
        args, steps = (case.input, ()) if plan is None else (None, plan.steps)
        job = {"kind": kind, "fn_name": self.problem.fn_name, "args": args, "steps": steps}
        self.prepared.start(self.problem.limits, job=job, left=left, hold=hold)
        return plan


def _own_end(done: RunResult, frame: Frame | None) -> RunResult:
    """Drop the exit code where a harness has caught the program's error: it is the harness's own."""
    return done if frame is None or frame["ok"] else replace(done, exit_code=None)


def run_once(
    problem: Problem, program: Program, *, isolation: Isolation = "auto", packages: Sequence[str] = ()
) -> tuple[CaseResult, bytes, bytes, str]:
    """Run a program on a stdio problem's first case without comparing: result, stdout, stderr or compile log, tier."""

    def run(jail: Jail) -> tuple[CaseResult, bytes, bytes, str]:
        verdict, ran = run_program(jail, Builder(os.path.join(jail.directory, "build")), problem, program)
        result = CaseResult(0, verdict, ran.cpu_s, ran.wall_s, ran.memory_bytes, ran.message)
        return result, ran.stdout, ran.stderr or ran.compile_log.encode(), ran.tier

    return in_fresh_jails(run, isolation, packages=packages)


def _check_kind(problem: Problem, program: Program, language: Language) -> None:
    needed = "stdio" if problem.kind == "interactive" else problem.kind
    if needed not in language.kinds:
        raise InvalidProblem(
            f"problem {problem.id!r}: kind={problem.kind!r} cannot be judged in {language.name}; "
            f"use {' or '.join(language.kinds)}"
        )
    if program.files and problem.kind not in ("stdio", "interactive"):
        raise InvalidProblem(
            f"problem {problem.id!r}: kind={problem.kind!r} does not support programs of several files"
        )
    if problem.kind == "function" and not language.warm:
        for index, case in enumerate(problem.cases):
            try:
                loads(case.input)
            except ValueError as error:
                raise InvalidProblem(
                    f"problem {problem.id!r}: cases[{index}]: input is a Python literal, with which no program in "
                    f"{language.name} can be called: {error}"
                ) from error
    if problem.kind == "assert" and find_language(problem.language) is not language:
        raise InvalidProblem(
            f"problem {problem.id!r}: language={problem.language!r}: its tests do not fit a program in {language.name}"
        )


def _earned(problem: Problem, results: list[CaseResult]) -> float | None:
    """Return the score: a subtask's points are earned when all its cases ran and passed."""
    if not problem.subtasks:
        return None
    passed = {done.index for done in results if done.verdict is Verdict.AC}
    failed = {case.group for index, case in enumerate(problem.cases) if index not in passed}
    earned = sum(subtask.points for subtask in problem.subtasks if subtask.name not in failed)
    return earned / sum(subtask.points for subtask in problem.subtasks)


def run_all_passes(problem: Problem, prepared: PreparedProgram, referee: Referee, index: int) -> CaseResult:
    """Run all passes of a case.

    Raises CompileError, CheckerError, SandboxError. A referee that asks for too many runs may have been led to it by
    the program, like a crash: see referee.py.
    """
    case = problem.cases[index]
    runs: list[CaseResult] = []
    for left in reversed(range(problem.passes)):
        referee.left = left
        runs.append(case_result(index, *_pass(problem, prepared, referee, case, len(runs))))
        following = referee.feedback.pop(NEXT_PASS, None) if runs[-1].verdict is Verdict.AC else None
        if following is None:
            return _together(runs, referee)
        referee.again = True
        case = replace(case, input=following.decode("utf-8", "surrogateescape"))
    raise AssertionError("a referee that asks for another run in the last one has failed")


def _pass(
    problem: Problem, prepared: PreparedProgram, referee: Referee, case: Case, number: int
) -> tuple[RunResult, Decision, Excerpt | bytes | None]:
    job: Frame = {"chance": number}  # of the program, which would repeat itself
    if problem.kind == "interactive":
        return interactive.run_interactive(prepared, referee, problem.limits, case, job)
    prepared.start_case(problem.limits, case, job=job)
    done, frame = prepared.finish()
    ending = decide_ending(done, frame, problem.limits, prepared.language)
    return done, ending or referee.check(case, done.stdout), done.stdout


def _together(runs: list[CaseResult], referee: Referee) -> CaseResult:
    most = {name: max(getattr(run, name) for run in runs) for name in ("cpu_s", "wall_s", "memory_bytes")}
    message = runs[-1].message
    if message and len(runs) > 1:
        message = f"run {len(runs)}: {message}"
    return replace(runs[-1], **most, message=message, feedback=referee.notes())
