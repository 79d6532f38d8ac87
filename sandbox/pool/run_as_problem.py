"""A run without a verdict, as the pool does it: a stdio problem of one case, whose expected output is not read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from sandbox.core.checks import check_files, wrong_type
from sandbox.core.nouns import COMPILE_LIMITS, Case, Judgement, Limits, Verdict
from sandbox.core.problem import Problem
from sandbox.core.program_run import ProgramRun
from sandbox.errors import InvalidProblem
from sandbox.judging.single_run import DOES_NOT_COMPILE

FETCHED_MAX: Final = 64
_UNREAD: Final = "-"
BUILD: Final = Problem("build", "stdio", (Case("", _UNREAD),), limits=COMPILE_LIMITS)


def as_problem(
    stdin: str, arguments: Sequence[str], files: Mapping[str, str | bytes], limits: Limits | None
) -> Problem:
    """Raises InvalidProblem for what no run can be given."""
    if not isinstance(stdin, str):
        raise wrong_type("run", "stdin", stdin, "text")
    if not isinstance(files, Mapping):
        raise wrong_type("run", "files", files, "a mapping of names to text or bytes")
    pairs = tuple((name, _text(name, content)) for name, content in files.items())
    case = Case(stdin, _UNREAD, arguments=_texts("arguments", arguments), files=pairs)
    return Problem("run", "stdio", (case,), limits=Limits() if limits is None else limits)


def _texts(name: str, given: object) -> tuple[str, ...]:
    if isinstance(given, str) or not isinstance(given, Sequence) or not all(isinstance(text, str) for text in given):
        raise wrong_type("run", name, given, "a list of texts")
    return tuple(given)


def _text(name: str, content: object) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, bytes):
        raise wrong_type("run", f"files[{name!r}]", content, "text or bytes")
    return content.decode("utf-8", "surrogateescape")


def checked_names(names: Sequence[str]) -> tuple[str, ...]:
    """Names of files to bring back. Raises InvalidProblem."""
    found = tuple(dict.fromkeys(_texts("fetch_files", names)))
    if len(found) > FETCHED_MAX:
        raise InvalidProblem(f"run: fetch_files: {len(found)} files, and at most {FETCHED_MAX} are brought back")
    for name in found:  # each by itself: one may be a folder of another
        check_files("run: fetch_files", ((name, ""),), InvalidProblem)
    return found


def not_run(done: Judgement) -> ProgramRun:
    """A program that does not compile, or took down each process that compiled or ran it."""
    who = done.tier, done.language, done.toolchain
    if done.verdict is Verdict.CE:
        log, cause = done.compile_log, done.compile_cause
        return ProgramRun(*who, message=DOES_NOT_COMPILE, compiled=False, compile_log=log, compile_cause=cause)
    return ProgramRun(*who, cause="crash", message=done.cases[0].message)
