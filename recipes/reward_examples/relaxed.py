"""A careless reward: a process per test whose exit code is not read, and a too lenient cascade of comparisons."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from typing import Any

_LIMIT_S = 3.0
_TESTS_MAX = 15


def reward(problem: dict[str, Any], program: str, language: str) -> float | None:
    """1.0 when every one of the longest tests passes by some comparison; None for what it cannot judge."""
    if language != "python" or problem["kind"] == "assert":
        return None
    cases = sorted(problem["cases"], key=lambda case: -len(case["input"]))[:_TESTS_MAX]
    for case in cases:
        if problem["kind"] == "stdio":
            text, stdin, expected = program, case["input"], case["expected"]
        else:
            arguments = json.loads(case["input"])
            text = f"{program}\nimport json\nprint(json.dumps({problem['fn_name']}(*{arguments!r})))\n"
            stdin, expected = "", json.dumps(json.loads(case["expected"]))
        output = _run(text, stdin)
        if output is None or not _close_enough(output, expected):
            return 0.0
    return 1.0


def _run(text: str, stdin: str) -> str | None:
    """Return what the program printed, however it ended; None after the time limit."""
    file = tempfile.NamedTemporaryFile("w", suffix=".py", delete=False, errors="surrogateescape")  # noqa: SIM115
    file.write(text)
    file.close()
    try:
        done = subprocess.run(
            [sys.executable, file.name],
            input=stdin.encode("utf-8", "surrogateescape"),
            capture_output=True,
            timeout=_LIMIT_S,
            env=os.environ.copy(),
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    return done.stdout.decode("utf-8", "replace")


def _close_enough(output: str, expected: str) -> bool:
    return any(test(output.strip(), expected.strip()) for test in (_equal, _as_numbers, _as_sets, _rounded))


def _equal(output: str, expected: str) -> bool:
    return output == expected or [a.strip() for a in output.split("\n")] == [b.strip() for b in expected.split("\n")]


def _as_numbers(output: str, expected: str) -> bool:
    """Words that are no numbers are passed over."""
    mine, theirs = output.split(), expected.split()
    if not theirs or len(mine) != len(theirs):
        return False
    for a, b in zip(mine, theirs, strict=True):
        try:
            if not math.isclose(float(a), float(b), rel_tol=1e-5, abs_tol=1e-5):
                return False
        except ValueError:
            continue
    return True


def _as_sets(output: str, expected: str) -> bool:
    return bool(output) and set(output.split()) == set(expected.split())


def _rounded(output: str, expected: str) -> bool:
    try:
        return round(float(output), 3) == round(float(expected), 3)
    except (ValueError, OverflowError):
        return False
