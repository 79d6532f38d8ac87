"""Run a test in a jail of its own, beside the program's jail.

    test's jail ──calls──▶ program's jail      one pipe each way; the test never sees the program's code, and the
                ◀─values──                     program sees only the arguments of calls

The end of either side is an end of file for the other, and both have limits, so both end.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import Final

from sandbox.core.nouns import MIB, Case, Limits, Program, Verdict
from sandbox.core.problem import Problem
from sandbox.jail.run import RunResult
from sandbox.judging.assert_apart import Apart
from sandbox.judging.prepared import Frame, PreparedProgram
from sandbox.judging.verdicts import ACCEPTED, Decision, check_beside, decide_frame, decide_limits
from sandbox.languages.language import Language
from sandbox.languages.layout import CompileError
from sandbox.zygote.run_clock import WALL_STRETCH

_MEMORY_BYTES: Final = 1024 * MIB  # of the test's side, which holds what the program sends
_FAREWELL_S: Final = 10.0
_OWN_FAULTS: Final = ("NameError", "UnboundLocalError", "ImportError", "ModuleNotFoundError", "SystemExit")
"""Errors that a value of the program cannot cause: the test does not work in a jail of its own."""


Talk = tuple[RunResult, Frame | None, RunResult | None, Frame | None]


def run_apart(prepared: PreparedProgram, problem: Problem, case: Case, what: Apart) -> Talk:
    """Return how the program's run ended and then the test's; None where the test cannot be compiled.

    Raises CompileError for the program, SandboxError for the sandbox.
    """
    limits = problem.limits
    patient = replace(
        limits,
        wall_s=limits.wall_limit_s * WALL_STRETCH + _FAREWELL_S,
        memory_bytes=max(limits.memory_bytes, _MEMORY_BYTES),
    )
    test = PreparedProgram(
        prepared.jail.partner(), prepared.builder, Program(case.input), problem, cancel_fd=prepared.cancel_fd
    )
    with ExitStack() as stack:
        stack.enter_context(test)
        with ExitStack() as ends:
            program_in, test_out = _pipe(ends)
            test_in, program_out = _pipe(ends)
            test.start(patient, job={"kind": "ask", "chance": None, **asdict(what)}, pipes=(test_in, test_out))
            prepared.start(limits, job={"kind": "serve"}, pipes=(program_in, program_out))
        done, frame = prepared.finish()
        try:
            tested, said = test.finish()
        except CompileError:  # reported by the run beside the program
            return done, frame, None, None
        check_beside(done, limits, test.jail)
        return done, frame, tested, said


def decide(talk: Talk, what: Apart, limits: Limits, language: Language) -> Decision | None:
    """Return the verdict; None where the test has to run beside the program."""
    done, frame, tested, said = talk
    if limited := decide_limits(done, limits):
        return limited
    if frame is None or not frame.get("ok"):
        return decide_frame(done, frame, language)
    if said is not None and said.get("ok") is True:
        return ACCEPTED if what.sound and said.get("kind") != "doubt" else None
    if said is not None and said.get("lost") == "end":
        return Verdict.RE, str(said.get("error"))
    if not what.decisive or tested is None or (said is not None and said.get("lost") == "test"):
        return None
    return _decide_failure(tested, said, limits)


def _decide_failure(tested: RunResult, said: Frame | None, limits: Limits) -> Decision | None:
    """Decide by a test whose result is final: its failures come from the program's values."""
    if limited := decide_limits(tested, limits):
        return limited
    if said is None:
        return Verdict.RE, "its values end the test"
    if said.get("lost"):
        return Verdict.WA, str(said.get("error"))
    if said.get("kind") == "memory":
        return Verdict.MLE, "its values do not fit into the test's memory"
    error, stage = str(said["error"]), said.get("stage")
    if said.get("kind") == "assertion" and stage != "call":
        return Verdict.WA, "an assert does not hold"
    own = stage == "preamble" or (stage == "test" and error.startswith(_OWN_FAULTS))
    return None if own else (Verdict.RE, error)


def _pipe(stack: ExitStack) -> tuple[int, int]:
    """Both ends are closed with the stack: the runs have theirs."""
    source, target = os.pipe()
    stack.callback(os.close, source)
    stack.callback(os.close, target)
    return source, target
