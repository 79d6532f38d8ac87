"""The reward to compare with: a pure function of the judge's verdict. Our own failure is no reward at all."""

from __future__ import annotations

from typing import Any

import sandbox


def reward(problem: dict[str, Any], program: str, language: str) -> float | None:
    """1.0 for AC, 0.0 for any other verdict, None when the sandbox failed."""
    try:
        judgement = sandbox.judge(sandbox.Problem.from_json(problem), sandbox.Program(program, language))
    except sandbox.SandboxError:
        return None
    return 1.0 if judgement.verdict is sandbox.Verdict.AC else 0.0
