"""Judge a language's sample program in the jail, to verify its toolchain."""

from __future__ import annotations

from sandbox.core import Verdict
from sandbox.judging import Judge, control
from sandbox.languages import Language


def self_test(judge: Judge, language: Language) -> tuple[bool, str]:
    """Return whether it passed, with the toolchain's version or what went wrong.

    Raises SandboxError (ToolchainMissing).
    """
    done = judge.judge(*control.sample(language))
    if done.verdict is Verdict.AC:
        return True, done.toolchain
    reason = done.compile_log or (done.cases[0].message if done.cases else "")
    return False, f"{done.toolchain}: its self-test ended with {done.verdict}: {reason.strip()[:300]}"
