"""Decide a verdict for a run of the judged program. The questions, in their fixed order:

    1  was a forbidden call made?                SEC
    2  was a limit enforced, and which?          TLE MLE OLE RE     recorded by the enforcer, never inferred
    3  did it end well?                          RE, MLE            exit code 0; or a result, where there is one
    4  is it right?                              AC WA              decided outside every jail, or in the checker's own

A later question is not asked where an earlier one has an answer: partial output after a TLE is never compared.
"""

from __future__ import annotations

import json
import re
import signal
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from typing import Any, Final

from sandbox.compare import modes, values
from sandbox.core.checks import encode_text, printable
from sandbox.core.excerpt import Excerpt
from sandbox.core.nouns import Case, CaseResult, Limits, Verdict
from sandbox.core.problem import Kind, Problem
from sandbox.errors import Starved
from sandbox.jail.jail import Jail
from sandbox.jail.run import RunResult
from sandbox.judging import assert_values, python_asserts
from sandbox.judging.prepared import Frame
from sandbox.languages.language import Language

Decision = tuple[Verdict, str]

ACCEPTED: Final[Decision] = (Verdict.AC, "")
_UNREADABLE: Final[Decision] = (Verdict.RE, "an unreadable result")
_MESSAGE_MAX: Final = 300
_CAUSES: Final = {
    "security": (Verdict.SEC, "security: {detail}"),
    "memory": (Verdict.MLE, "memory limit of {memory_bytes} bytes"),
    "output": (Verdict.OLE, "output limit of {output_bytes} bytes"),
    "disk": (Verdict.OLE, "its files take more than the work directory holds"),
    "cpu": (Verdict.TLE, "CPU-time limit of {cpu_s} s"),
    "wall": (Verdict.TLE, "wall-time limit of {wall_limit_s} s"),
    "processes": (Verdict.RE, "limit of {processes} processes"),  # elsewhere fork fails, and ends the program
}
_LIMITS: Final = ("memory_bytes", "output_bytes", "cpu_s", "wall_limit_s", "processes")
_REFUSED: Final = "an allocation was refused at the memory limit"
_CALL_CHARS_MAX: Final = 200
_DECIMAL_BITS_MAX: Final = 1 << 17
_TOO_LONG: Final = "a value with an integer of more than 4,300 digits"


def case_result(
    index: int, done: RunResult, decision: Decision, said: Excerpt | str | bytes | None = None
) -> CaseResult:
    """The result of a case; `said` is what the program printed or returned, and kept where the case failed."""
    verdict, message = decision
    shown = printable(message[:_MESSAGE_MAX])[:_MESSAGE_MAX]
    usage = (done.cpu_s, done.wall_s, done.memory_bytes)
    exit_code, signal_sent = (done.exit_code, done.signal) if done.cause is None else (None, None)
    result = CaseResult(index, verdict, *usage, shown, exit_code=exit_code, signal=signal_sent)
    if verdict is Verdict.AC:
        return result
    got = Excerpt.of(said) if isinstance(said, str | bytes) else said
    return replace(result, got=got, stderr=Excerpt.of(done.stderr) if done.stderr else None)


def decide_limits(done: RunResult, limits: Limits) -> Decision | None:
    """Questions 1 and 2: the verdict for the limit that was enforced."""
    if done.cause is None:
        return None
    cause, _, detail = done.cause.partition(": ")
    verdict, text = _CAUSES[cause]
    return verdict, text.format(detail=detail, **{name: getattr(limits, name) for name in _LIMITS})


def check_beside(done: RunResult, limits: Limits, beside: Jail) -> None:
    """Raises Starved where a program may have waited so long for the run beside it because that was starved."""
    if done.cause == "wall" and beside.lost_s > limits.wall_limit_s / 2:
        raise Starved(f"the run beside a program waited {beside.lost_s:.0f} s for the machine; use fewer workers")


def decide_ending(done: RunResult, frame: Frame | None, limits: Limits, language: Language) -> Decision | None:
    """Questions 1 to 3; None when only the output is left to judge."""
    return decide_limits(done, limits) or (_decide_crash(done, frame, language) if done.exit_code != 0 else None)


def decide_output(problem: Problem, case: Case, done: RunResult) -> Decision:
    """Question 4 for stdio without a checker."""
    right = modes.parse_mode(case.compare or problem.compare)(done.stdout, encode_text(case.expected or ""))
    return ACCEPTED if right else (Verdict.WA, "wrong output")


def _decide_crash(done: RunResult, frame: Frame | None, language: Language, *, asserts_tell: bool = False) -> Decision:
    """Decide an end that no limit caused. The harness or the language's runtime reports refused memory."""
    words = done.stderr.decode("utf-8", "replace")
    tail = frame["error"] if frame and frame["error"] else _last_words(words, language)
    if (frame and frame["kind"] == "memory") or re.search(language.refused, words, re.MULTILINE):
        return Verdict.MLE, _REFUSED
    if asserts_tell and _tells(words, language.asserted):
        return Verdict.WA, "an assert does not hold"
    if done.signal is not None:
        name = str(done.signal)
        with suppress(ValueError):
            name = signal.Signals(done.signal).name
        return Verdict.RE, f"ended by {name}" + (f": {tail}" if tail else "")
    return Verdict.RE, f"exit code {done.exit_code}" + (f": {tail}" if tail else "")


def _tells(stderr: str, asserted: Sequence[str]) -> bool:
    """Return whether the texts are in a line and the one after it, in their order."""
    if not asserted:
        return False
    lines = stderr.split("\n")
    return any(_in_order(f"{line}\n{after}", asserted) for line, after in zip(lines, [*lines[1:], ""], strict=True))


def _in_order(text: str, parts: Sequence[str]) -> bool:
    place = 0
    for part in parts:
        found = text.find(part, place)
        if found < 0:
            return False
        place = found + len(part)
    return True


def _last_words(stderr: str, language: Language) -> str:
    """Return what the runtime reports of the end; it is not always in the last line."""
    for found in deque(re.finditer(language.said, stderr, re.MULTILINE), maxlen=1):
        return " ".join(found["said"].split("\n"))
    return stderr[-2000:].strip().rpartition("\n")[2]


def decide_values(
    problem: Problem,
    case: Case,
    plan: python_asserts.Plan | None,
    done: RunResult,
    frame: Frame | None,
    language: Language,
) -> tuple[Decision, str | None]:
    """All questions for function and assert problems, and the values that are not right."""
    if failed := decide_limits(done, problem.limits) or decide_frame(done, frame, language, problem.kind):
        return failed, None
    assert frame is not None
    try:
        if plan is not None and not assert_values.is_affordable(frame["values"]):
            return (Verdict.WA, "returned numbers that are too long to compute with"), None
        with values.acyclic():
            found = [values.decode_value(item) for item in frame["values"]]
    except (ValueError, KeyError, RecursionError):
        return _UNREADABLE, None
    if len(found) != (1 if plan is None else sum(mode == "eval" for mode, _ in plan.steps)):
        return _UNREADABLE, None
    if plan is None:
        expected = values.loads(case.expected or "null")
        right = modes.same_result(problem.compare, found[0], expected)
        return (ACCEPTED, None) if right else ((Verdict.WA, "wrong value"), describe_value(found[0]))
    for number, check in enumerate(plan.checks):
        if not assert_values.holds(check, found):
            failed = Verdict.WA, f"assert {number + 1} of {len(plan.checks)} does not hold"
            return failed, _describe_calls(plan, check, found)
    return ACCEPTED, None


def decide_frame(done: RunResult, frame: Frame | None, language: Language, kind: Kind = "assert") -> Decision | None:
    """Question 3 for function and assert problems; None when there is a result to look at."""
    if frame is None:
        if done.signal is not None or (done.exit_code != 0 and not language.warm):
            return _decide_crash(done, frame, language, asserts_tell=kind == "assert")
        complete = language.harness[kind].complete
        return Verdict.RE, f"ended with exit code {done.exit_code} before its result: it is complete when {complete}"
    return None if frame.get("ok") else _decide_complaint(frame)


def _decide_complaint(frame: Frame) -> Decision:
    error, stage, kind = frame["error"], frame["stage"], frame["kind"]
    if kind == "memory":
        return Verdict.MLE, _REFUSED
    if stage == "value" or (kind == "assertion" and stage == "call"):
        return Verdict.WA, error
    return Verdict.RE, error


def describe_value(value: Any) -> str:
    """The value as JSON, or as Python writes it where it has no JSON form."""
    if type(value) is int:
        return _digits(value)
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        return _python(value)


def _describe_calls(plan: python_asserts.Plan, check: assert_values.Check, found: list[Any]) -> str:
    """The calls of the program in one assert and what each returned, a line each."""
    calls = [text for mode, text in plan.steps if mode == "eval"]
    return "\n".join(f"{_short(calls[number])} = {_python(found[number])}" for number in check.slots)


def _python(value: Any) -> str:
    if type(value) is int:
        return _digits(value)
    if isinstance(value, Iterator):
        return f"a {type(value).__name__}"  # its repr is an address, and the check has used it up
    try:
        return repr(value)
    except ValueError:
        return _TOO_LONG


def _digits(value: int) -> str:
    """A long integer in hexadecimal: in decimal it would take the judge's time."""
    return str(Decimal(value)) if value.bit_length() <= _DECIMAL_BITS_MAX else hex(value)


def _short(call: str) -> str:
    return call if len(call) <= _CALL_CHARS_MAX else call[:_CALL_CHARS_MAX] + "…"
