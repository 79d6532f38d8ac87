"""Program × Problem → Judgement. The one place that decides verdicts, outside every jail.

    build (once) ─▶ for each case: run in the jail ─▶ limits, then exit, then output or values ─▶ CaseResult

The order of the questions is fixed: was a limit enforced, did it end well, and only then: is it right?
"""

from __future__ import annotations

import hmac
import json
import os
import re
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from sandbox import asserts, compare, units, values
from sandbox.build import Builder
from sandbox.core import SOURCE_BYTES_MAX, Case, CaseResult, Isolation, Judgement, Limits, Problem, Program, Verdict
from sandbox.errors import InvalidProblem
from sandbox.jail import Jail, Run, RunResult, make_memfd
from sandbox.languages import Language, find
from sandbox.toolchain import toolchain

_NONCE_BYTES: Final = 32
_MESSAGE_MAX: Final = 300
_CAUSES: Final = {
    "memory": (Verdict.MLE, "memory limit of {memory_bytes} bytes"),
    "output": (Verdict.OLE, "output limit of {output_bytes} bytes"),
    "cpu": (Verdict.TLE, "CPU-time limit of {cpu_s} s"),
    "wall": (Verdict.TLE, "wall-time limit of {wall_limit_s} s"),
}

_WEAK_PLAN: Final = asserts.Plan((), (), weak=True)
_REFUSED: Final = "an allocation was refused at the memory limit"

Decision = tuple[Verdict, str]
Frame = dict[str, Any]


class CompileError(Exception):
    """The program does not compile; the text is the log."""


@dataclass(frozen=True, slots=True)
class Judge:
    """A jail and a builder, ready for one program after the other."""

    jail: Jail
    builder: Builder
    stop_at_first_failure: bool = True
    cancel_fd: int | None = None

    def judge(self, problem: Problem, program: Program) -> Judgement:
        """Raises SandboxError for our faults only."""
        start = time.monotonic()
        language = find(program.language)
        if problem.kind not in language.kinds:
            raise InvalidProblem(
                f"problem {problem.id!r}: kind={problem.kind!r} cannot be judged in {language.name}; "
                f"use {' or '.join(language.kinds)}"
            )
        if problem.kind == "assert" and find(problem.language) is not language:
            raise InvalidProblem(
                f"problem {problem.id!r}: language={problem.language!r}: its tests are no {language.name}"
            )
        results: list[CaseResult] = []
        log, weak = "", False
        tools = toolchain(language)
        try:
            with _Prepared(self, problem, program, language) as prepared:
                log = prepared.log
                for index, case in enumerate(problem.cases):
                    done, case_weak = prepared.run(index, case)
                    results.append(done)
                    weak |= case_weak
                    if done.verdict is not Verdict.AC and self.stop_at_first_failure:
                        break
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
        )


class _Prepared:
    """A program made ready to run: checked, and compiled where its language is."""

    def __init__(self, judge: Judge, problem: Problem, program: Program, language: Language) -> None:
        self.judge, self.problem, self.language = judge, problem, language
        self.source = program.source
        self.unit: units.Unit | None = None
        self.artefact: bytes | int | None = None
        self.log = ""

    def __enter__(self) -> _Prepared:
        if len(self.source) > SOURCE_BYTES_MAX:
            raise CompileError(f"the source is longer than {SOURCE_BYTES_MAX} characters")
        if self.language.compile and self.problem.kind != "assert":
            self._build(self.problem.cases[0])
        return self

    def _build(self, case: Case) -> None:
        """Compile the program; an assert problem's with the case's test."""
        self.close()
        self.unit = units.compose(self.language, self.problem, self.source, case)
        build = self.judge.builder.build(self.judge.jail, self.unit, cancel_fd=self.judge.cancel_fd)
        self.log = build.log
        if build.artefact is None:
            raise CompileError(build.log)
        native = units.is_native(self.language)
        self.artefact = make_memfd("program", build.artefact, seal=True) if native else build.artefact

    def close(self) -> None:
        if isinstance(self.artefact, int):
            os.close(self.artefact)
        self.artefact = None

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, index: int, case: Case) -> tuple[CaseResult, bool]:
        """One case in a fresh process; the flag is `weak`. Raises CompileError, SandboxError."""
        plan = None
        if self.problem.kind == "assert":
            plan = _WEAK_PLAN if self.language.compile else asserts.plan(case.input)
            if self.language.compile:
                self._build(case)
        done, frame = self.execute(case, plan)
        if self.problem.kind == "stdio":
            decision = _decide_ending(done, frame, self.problem.limits, self.language) or _decide_output(
                self.problem, case, done
            )
        else:
            limited = _decide_limits(done, self.problem.limits)
            decision = limited or _decide_values(self.problem, case, plan, done, frame, self.language)
        return _case_result(index, done, decision), plan is not None and plan.weak

    def execute(self, case: Case, plan: asserts.Plan | None = None) -> tuple[RunResult, Frame | None]:
        """Run the program on a case, and read what its harness wrote."""
        limits = self.problem.limits
        stdin = case.input.encode("utf-8", "surrogateescape") if self.problem.kind == "stdio" else b""
        nonce = os.urandom(_NONCE_BYTES)
        if self.unit is not None and self.artefact is not None:
            run = units.start(self.unit, limits, stdin, self.artefact, units.job(self.problem, case) + nonce)
        else:
            run = Run(limits, stdin, job=self._job(case, plan) + nonce)
        done = self.judge.jail.run(run, cancel_fd=self.judge.cancel_fd)
        frame = _frame(done, nonce)
        if frame and frame.get("stage") == "compile":
            raise CompileError(str(frame.get("error")))
        return done, frame

    def _job(self, case: Case, plan: asserts.Plan | None) -> bytes:
        job = {
            "kind": self.problem.kind,
            "source": self.source,
            "preamble": self.problem.preamble,
            "fn_name": self.problem.fn_name,
            "args": case.input if self.problem.kind == "function" else None,
            "steps": plan.steps if plan else (),
        }
        return json.dumps(job).encode()


def run_once(
    problem: Problem, program: Program, *, isolation: Isolation = "auto"
) -> tuple[CaseResult, bytes, bytes, str]:
    """Run a program on a stdio problem's first case without comparing: result, stdout, stderr, tier."""
    with Jail(isolation) as jail:
        judge = Judge(jail, Builder(os.path.join(jail.directory, "build")))
        try:
            with _Prepared(judge, problem, program, find(program.language)) as prepared:
                done, frame = prepared.execute(problem.cases[0])
        except CompileError as error:
            return CaseResult(0, Verdict.CE, 0.0, 0.0, 0, "does not compile"), b"", str(error).encode(), jail.tier
        decision = _decide_ending(done, frame, problem.limits, prepared.language) or (Verdict.AC, "")
        return _case_result(0, done, decision), done.stdout, done.stderr, jail.tier


def _case_result(index: int, done: RunResult, decision: Decision) -> CaseResult:
    verdict, message = decision
    return CaseResult(index, verdict, done.cpu_s, done.wall_s, done.memory_bytes, message[:_MESSAGE_MAX])


def _decide_limits(done: RunResult, limits: Limits) -> Decision | None:
    """The verdict of an enforced limit, whoever ended the process."""
    if done.cause is None:
        return None
    verdict, text = _CAUSES[done.cause]
    numbers = {name: getattr(limits, name) for name in ("memory_bytes", "output_bytes", "cpu_s", "wall_limit_s")}
    return verdict, text.format(**numbers)


def _decide_ending(done: RunResult, frame: Frame | None, limits: Limits, language: Language) -> Decision | None:
    """A limit, or an end that was not a clean exit; None when only the output is left to look at."""
    return _decide_limits(done, limits) or (_decide_crash(done, frame, language) if done.exit_code != 0 else None)


def _decide_output(problem: Problem, case: Case, done: RunResult) -> Decision:
    expected = (case.expected or "").encode("utf-8", "surrogateescape")
    if compare.parse_mode(problem.compare)(done.stdout, expected):
        return Verdict.AC, ""
    return Verdict.WA, "wrong output"


def _decide_crash(done: RunResult, frame: Frame | None, language: Language, *, asserts_tell: bool = False) -> Decision:
    """An end that no limit of ours caused. Refused memory is told by the harness, or by the language's runtime."""
    words = done.stderr.decode("utf-8", "replace")
    tail = words[-2000:].strip().rpartition("\n")[2]
    if (frame and frame.get("kind") == "memory") or re.search(language.refused, words, re.MULTILINE):
        return Verdict.MLE, _REFUSED
    if asserts_tell and re.search(language.asserted, words, re.MULTILINE):
        return Verdict.WA, "an assert does not hold"
    if done.signal is not None:
        name = str(done.signal)
        with suppress(ValueError):
            name = signal.Signals(done.signal).name
        return Verdict.RE, f"ended by {name}" + (f": {tail}" if tail else "")
    return Verdict.RE, f"exit code {done.exit_code}" + (f": {tail}" if tail else "")


def _decide_values(
    problem: Problem, case: Case, plan: asserts.Plan | None, done: RunResult, frame: Frame | None, language: Language
) -> Decision:
    if frame is None:
        if done.signal is not None or (done.exit_code != 0 and language.compile):
            return _decide_crash(done, frame, language, asserts_tell=plan is not None)
        return Verdict.RE, f"ended with exit code {done.exit_code} before its result"
    if not frame.get("ok"):
        return _decide_complaint(frame)
    try:
        found = [values.decode(item) for item in frame["values"]]
    except (ValueError, TypeError, KeyError, RecursionError):
        return Verdict.RE, "an unreadable result"
    if len(found) != (1 if plan is None else sum(mode == "eval" for mode, _ in plan.steps)):
        return Verdict.RE, "an unreadable result"
    if plan is None:
        expected = values.loads(case.expected or "null")
        right = values.same(found[0], expected, compare.tolerance(problem.compare))
        return (Verdict.AC, "") if right else (Verdict.WA, "wrong value")
    for number, check in enumerate(plan.checks):
        if not asserts.holds(check, found):
            return Verdict.WA, f"assert {number + 1} of {len(plan.checks)} does not hold"
    return Verdict.AC, ""


def _decide_complaint(frame: Frame) -> Decision:
    error, stage, kind = (str(frame.get(key, "")) for key in ("error", "stage", "kind"))
    if kind == "memory":
        return Verdict.MLE, _REFUSED
    if stage == "value" or (kind == "assertion" and stage == "call"):
        return Verdict.WA, error
    return Verdict.RE, error


def _frame(done: RunResult, nonce: bytes) -> Frame | None:
    """What the harness wrote, if it carries this run's nonce and can be read."""
    if not hmac.compare_digest(done.result[:_NONCE_BYTES], nonce):
        return None
    try:
        data = values.loads(done.result[_NONCE_BYTES:])
    except ValueError:
        return None
    return data if isinstance(data, dict) else None
