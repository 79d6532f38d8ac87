"""Tests of the output validator by given outputs: valid_output/, invalid_output/, and the samples'.

OutputTest ── as the output of a program that prints it ─▶ Judge ─▶ AC, or not
"""

from __future__ import annotations

from dataclasses import dataclass

from sandbox.core.nouns import Program, Verdict
from sandbox.judging.judge import Judge
from sandbox.packages.package import ANSWER_FILE, Package

SAYS_ITS_ANSWER = Program(f"import sys\nsys.stdout.buffer.write(open({ANSWER_FILE!r}, 'rb').read())")


@dataclass(frozen=True, slots=True)
class Outputs:
    """Results of the output validator."""

    valid: int = 0
    invalid: int = 0
    surprises: tuple[str, ...] = ()
    """One line for each output that it judges otherwise than the author."""


def check_outputs(package: Package, judge: Judge) -> Outputs:
    """Check all given outputs. `judge` must run all cases. Raises SandboxError."""
    tests = package.outputs
    if not tests:
        return Outputs()
    found = []
    for test, result in zip(tests, judge.judge(package.output_problem(), SAYS_ITS_ANSWER).cases, strict=True):
        if (result.verdict is Verdict.AC) != test.valid:
            name = test.output.relative_to(package.path / "data")
            message = f": {result.message}" if result.message else ""
            found.append(f"{'rejects' if test.valid else 'accepts'} data/{name}{message}")
    valid = sum(test.valid for test in tests)
    return Outputs(valid, len(tests) - valid, tuple(found))
