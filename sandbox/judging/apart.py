"""A test in a jail of its own, beside the program's: does it hold?

    test's jail ──calls──▶ program's jail      one pipe each way; the test never sees the program's code, and the
                ◀─values──                     program sees of the test what it is called with

An end of either side is an end of file to the other, and both are under limits, so both end.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import Final

from sandbox.core import MIB, Case, Problem, Program
from sandbox.jail import WALL_STRETCH, RunResult
from sandbox.judging.prepared import CompileError, Frame, Prepared
from sandbox.judging.python_asserts import Apart

_MEMORY_BYTES: Final = 1024 * MIB  # of the test's side, which holds what the program sends
_FAREWELL_S: Final = 10.0


def converse(prepared: Prepared, problem: Problem, case: Case, what: Apart) -> tuple[RunResult, Frame | None, bool]:
    """The program's run, and whether the test held. Raises CompileError for the program, SandboxError for us."""
    limits = problem.limits
    patient = replace(
        limits,
        wall_s=limits.wall_limit_s * WALL_STRETCH + _FAREWELL_S,
        memory_bytes=max(limits.memory_bytes, _MEMORY_BYTES),
    )
    test = Prepared(
        prepared.jail.partner(), prepared.builder, Program(case.input), problem, cancel_fd=prepared.cancel_fd
    )
    with ExitStack() as stack:
        stack.enter_context(test)
        with ExitStack() as ends:
            program_in, test_out = _pipe(ends)
            test_in, program_out = _pipe(ends)
            test.start(
                patient,
                job={"kind": "ask", **asdict(what)},
                pipes=(test_in, test_out),
            )
            prepared.start(limits, job={"kind": "serve", "classes": what.classes}, pipes=(program_in, program_out))
        done, frame = prepared.finish()
        try:
            _, said = test.finish()
        except CompileError:  # the test's text; told by the run beside the program
            said = None
    return done, frame, said is not None and said.get("ok") is True


def _pipe(stack: ExitStack) -> tuple[int, int]:
    """Both ends are closed with the stack: the runs have theirs."""
    source, target = os.pipe()
    stack.callback(os.close, source)
    stack.callback(os.close, target)
    return source, target
