"""One run of a program without a verdict: what it printed, how it ended, what it used. A pool does it as a stdio
problem of one case, whose expected output is not read.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from sandbox.build.builder import Builder
from sandbox.core.checks import check_files, encode_text, printable, wrong_type
from sandbox.core.nouns import COMPILE_LIMITS, Case, Judgement, Limits, Program, Verdict
from sandbox.core.problem import Problem
from sandbox.core.program_run import ProgramRun
from sandbox.errors import InvalidProblem
from sandbox.jail.jail import Jail
from sandbox.judging.prepared import PreparedProgram, encode_files
from sandbox.judging.verdicts import decide_ending
from sandbox.languages import toolchain
from sandbox.languages.layout import CompileError
from sandbox.languages.table import find_language

_MESSAGE_MAX: Final = 300
DOES_NOT_COMPILE: Final = "it does not compile"
FETCHED_MAX: Final = 64
_UNREAD: Final = "-"
BUILD: Final = Problem("build", "stdio", (Case("", _UNREAD),), limits=COMPILE_LIMITS)


def run_program(
    jail: Jail,
    builder: Builder,
    problem: Problem,
    program: Program,
    fetch: tuple[str, ...] = (),
    *,
    asserts: bool = False,
    cancel_fd: int | None = None,
) -> tuple[Verdict, ProgramRun]:
    """Run a program on the first case of a stdio problem, whose expected output is not looked at, and bring back the
    files named in `fetch`. asserts: as with `java -ea`. AC where it ends well. Raises SandboxError for failures of the
    sandbox.
    """
    start = time.monotonic()
    language = find_language(program.language)
    who = jail.tier, language.name, toolchain.toolchain(language)
    case, limits = problem.cases[0], problem.limits
    how: dict[str, Any] = {"arguments": case.arguments, "files": encode_files(case.files), "fetch": fetch}
    how["job"] = {"asserts": asserts}
    try:
        with PreparedProgram(jail, builder, program, problem, cancel_fd=cancel_fd) as prepared:
            compile_s = 0.0 if language.warm else time.monotonic() - start
            done, frame = prepared.run(limits, encode_text(case.input), shown_bytes=limits.output_bytes, **how)
    except CompileError as error:
        spent = time.monotonic() - start
        log = printable(str(error), "\n\t")
        failed = ProgramRun(*who, message=DOES_NOT_COMPILE, compiled=False, compile_log=log, compile_cause=error.cause)
        return Verdict.CE, replace(failed, compile_s=spent, run_s=spent)
    verdict, message = decide_ending(done, frame, limits, language) or (Verdict.AC, "")
    return verdict, ProgramRun(
        *who,
        stdout=done.stdout,
        stderr=done.stderr,
        exit_code=done.exit_code if done.cause is None else None,
        signal=done.signal if done.cause is None else None,
        cause=done.cause or ("memory" if verdict is Verdict.MLE else ""),
        message=printable(message[:_MESSAGE_MAX])[:_MESSAGE_MAX],
        cut=done.cut or done.gathered is None,
        cpu_s=done.cpu_s,
        wall_s=done.wall_s,
        memory_bytes=done.memory_bytes,
        files=done.gathered or (),
        compiled=None if language.warm else True,
        compile_log=printable(prepared.log, "\n\t"),
        compile_s=compile_s,
        run_s=time.monotonic() - start,
    )


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
