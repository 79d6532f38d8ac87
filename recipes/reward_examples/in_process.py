"""A careless reward: the program runs in the grader's own process, under an alarm, with stdin and stdout replaced."""

from __future__ import annotations

import io
import json
import signal
import sys
from contextlib import redirect_stdout, suppress
from typing import Any

_LIMIT_S = 1


class _TimedOut(Exception):
    pass


def _ring(*_: object) -> None:
    raise _TimedOut


def reward(problem: dict[str, Any], program: str, language: str) -> float | None:
    """1.0 when every test passes; None for what it cannot judge."""
    if language != "python":
        return None
    signal.signal(signal.SIGALRM, _ring)
    results: list[bool] = []
    for case in problem["cases"]:
        signal.alarm(_LIMIT_S)
        try:
            results.append(_run_case(problem, case, program, results))
        except BaseException:
            results.append(False)
            break
        finally:
            signal.alarm(0)
    return 1.0 if all(results) else 0.0  # also when there are none


_LOADED: dict[str, dict[str, Any]] = {}


def _run_case(problem: dict[str, Any], case: dict[str, Any], program: str, results: list[bool]) -> bool:
    if problem["kind"] == "stdio":
        return _run_stdio(case, program)
    if program not in _LOADED:
        _LOADED[program] = {"__name__": "solution"}
        exec(program, _LOADED[program])
    if problem["kind"] == "assert":
        exec(case["input"], _LOADED[program])
        return True
    expected = json.loads(case["expected"])
    found = _LOADED[program][problem["fn_name"]](*json.loads(case["input"]))
    return _same(found, expected)


def _same(found: Any, expected: Any) -> bool:
    if isinstance(found, tuple):
        found = list(found)
    return bool(found == expected)


class _Input(io.StringIO):
    """A text stdin with a buffer of its own. A program that reads the descriptor gets nothing."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._bytes = io.BytesIO(text.encode("utf-8", "surrogateescape"))

    @property
    def buffer(self) -> io.BytesIO:
        return self._bytes

    def __iter__(self) -> Any:
        raise TypeError("the mocked stdin is no iterator")


def _run_stdio(case: dict[str, Any], program: str) -> bool:
    indented = "\n".join("    " + line for line in program.split("\n"))  # the program becomes the body of a function
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(f"def wrapped():\n{indented}\n    return None\n", names)
    output, stdin = io.StringIO(), sys.stdin
    sys.stdin = _Input(case["input"])
    try:
        with redirect_stdout(output), suppress(SystemExit):
            names["wrapped"]()
    finally:
        sys.stdin = stdin
    mine, theirs = (text.strip().split("\n") for text in (output.getvalue(), case["expected"]))
    return len(mine) == len(theirs) and all(a.strip() == b.strip() for a, b in zip(mine, theirs, strict=True))
