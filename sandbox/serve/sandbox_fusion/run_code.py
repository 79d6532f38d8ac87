"""SandboxFusion's requests and results: `/run_code`, and what `/submit` and `/run_jupyter` share with it.

    Finished            the program ended itself: return_code is its exit code, or minus the signal that ended it
    TimeLimitExceeded   a limit on time ended it, CPU or wall
    Success, Failed     Failed where a return code is not 0 or a limit on time was met; never for a fault of ours

A limit that is none of time, as memory, ends a program as the kernel would, by SIGKILL; `message` says which it was.
"""

from __future__ import annotations

import asyncio
import posixpath
import signal
from base64 import b64encode
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, Literal

from sandbox.core.checks import check_files, quoted
from sandbox.core.nouns import MIB, Limits, Program
from sandbox.core.program_run import ProgramRun
from sandbox.errors import InvalidProblem, SandboxError
from sandbox.languages import table
from sandbox.serve.answers import Refused, from_base64
from sandbox.serve.bounds import MEMORY_BYTES
from sandbox.serve.sandbox_fusion.models import CommandRunResult, RunCodeRequest, RunCodeResponse
from sandbox.serve.service import Service

LANGUAGES: Final = {"nodejs": "javascript", "js": "javascript"}
"""Names of SandboxFusion that are not ours."""
NAMES: Final = tuple("nodejs" if name == "javascript" else name for name in table.LANGUAGES)
"""Names as in SandboxFusion, which has no C."""
PATIENCE_S: Final = 8.0
"""Clients wait ten seconds longer than compiling and running may take together; then they count the answer as lost."""
_BACKSTOP_S: Final = 5.0
_TIMES: Final = ("cpu", "wall")
_KILLED: Final = -int(signal.SIGKILL)
_SIGNALS: Final = {"output": -int(signal.SIGXFSZ), "security": -int(signal.SIGSYS)}


async def run_asked(service: Service, asked: RunCodeRequest) -> RunCodeResponse:
    """The response of `/run_code`. Raises Refused, InvalidProblem, SandboxError."""
    fetched = {name: name_inside("fetch_files", name) for name in asked.fetch_files}
    run = service.pool.run(
        Program(asked.code, fusion_language(asked.language)),
        stdin=asked.stdin,
        files=contents(asked.files),
        fetch_files=tuple(fetched.values()),
        limits=limits_of(asked.run_timeout, asked.memory_limit_MB),
        asserts=True,  # SandboxFusion starts Java with -ea
    )
    async with answered_within(asked.compile_timeout + asked.run_timeout + PATIENCE_S):
        return as_response(await run, fetched)


def fusion_language(name: str) -> str:
    """Our name of a language. Raises Refused, with its name, for one that cannot be run here."""
    if name not in NAMES and name not in LANGUAGES:
        raise Refused(422, f"language={quoted(name)}: cannot be run here; use one of {', '.join(NAMES)}")
    return table.find_language(LANGUAGES.get(name, name)).name


def limits_of(run_s: float, memory: int) -> Limits:
    """`run_timeout` is CPU time, so that a loaded machine fails no honest program; the wall clock has five seconds
    more, that the answer comes before the client gives up.
    """
    if memory < 1 and memory != -1:
        raise Refused(422, f"memory_limit_MB={memory}: must be a positive whole number, or -1")
    memory_bytes = MEMORY_BYTES if memory == -1 else memory * MIB
    return Limits(cpu_s=run_s, wall_s=run_s + _BACKSTOP_S, memory_bytes=memory_bytes)


def contents(files: Mapping[str, Any]) -> dict[str, bytes]:
    """Return files of a request by their names in the work directory; files that are null are left out."""
    given = {name: text for name, text in files.items() if text is not None}
    found = dict(zip(_names_inside(given), given, strict=True))
    return {inside: from_base64(name, given[name]) for inside, name in found.items()}


def _names_inside(names: Iterable[str]) -> list[str]:
    """Raises Refused where two names are one file or one leads outside, InvalidProblem for what no file is called."""
    found: dict[str, str] = {}
    for name in names:
        inside = name_inside("files", name)
        if inside in found:
            raise Refused(400, f"files: {found[inside]!r} and {name!r}: are the same file; give it once")
        found[inside] = name
    check_files("run", tuple((name, "") for name in found), InvalidProblem)
    return list(found)


def name_inside(where: str, name: str) -> str:
    """A name in the work directory, where the program runs. Raises Refused for a path outside."""
    inside = posixpath.normpath(name)
    if inside.partition("/")[0] in ("", ".", ".."):
        raise Refused(422, f"{where}: {name!r}: must be a path relative to the directory in which the program runs")
    return inside


@asynccontextmanager
async def answered_within(seconds: float) -> AsyncIterator[None]:
    """Raises SandboxError, which clients answer by asking again, when it takes longer."""
    try:
        async with asyncio.timeout(seconds) as deadline:
            yield
    except TimeoutError:
        if not deadline.expired():
            raise
        raise SandboxError(f"not done within {seconds:g} s: more is asked for than the workers can do") from None


def as_response(done: ProgramRun, fetched: Mapping[str, str]) -> RunCodeResponse:
    """The response of `/run_code`; ``fetched``: names of fetched files, as they were asked for."""
    found = dict(done.files)
    files = {name: b64encode(found[inside]).decode() for name, inside in fetched.items() if inside in found}
    message = done.message + ("; more was written than is shown" if done.cut else "")
    return response(_compile_result(done), _run_result(done), message, files)


def response(
    compiled: CommandRunResult | None, ran: CommandRunResult | None, message: str, files: dict[str, str] | None = None
) -> RunCodeResponse:
    """Return a compilation, a run or both as one response."""
    fine = all(part.status == "Finished" and part.return_code == 0 for part in (compiled, ran) if part)
    return RunCodeResponse(
        status="Success" if fine else "Failed",
        message=message,
        compile_result=compiled,
        run_result=ran,
        files=files or {},
    )


def is_interpreted(language: str) -> bool:
    """Return whether SandboxFusion knows no compilation of it: what cannot be parsed fails as it runs."""
    known = table.find_language(language)
    return known.warm or known.artifact == known.source


def return_code(exit_code: int | None, signal_sent: int | None, cause: str) -> int:
    """Return the return code that `subprocess` would give for such an end."""
    if exit_code is not None:
        return exit_code
    return -signal_sent if signal_sent else _SIGNALS.get(cause.partition(":")[0], _KILLED)


def _compile_result(done: ProgramRun) -> CommandRunResult | None:
    if done.compiled is None or is_interpreted(done.language):
        return None
    if not done.compiled:
        return not_compiled(done.compile_cause, done.compile_s, done.compile_log)
    return result("Finished", done.compile_s, 0, "", done.compile_log)


def not_compiled(cause: str, seconds: float, log: str) -> CommandRunResult:
    """Return the result of a compilation that failed."""
    if cause in _TIMES:
        return result("TimeLimitExceeded", seconds, None, "", log)
    return result("Finished", seconds, 1, "", log)


def _run_result(done: ProgramRun) -> CommandRunResult | None:
    if done.compiled is False:
        if not is_interpreted(done.language):
            return None
        return result("Finished", done.compile_s, 1, "", done.compile_log)
    out, err = (stream.decode("utf-8", "replace") for stream in (done.stdout, done.stderr))
    if done.cause in _TIMES:
        return result("TimeLimitExceeded", done.wall_s, None, out, err)
    return result("Finished", done.wall_s, return_code(done.exit_code, done.signal, done.cause), out, err)


def result(
    status: Literal["Finished", "TimeLimitExceeded"],
    seconds: float,
    code: int | None,
    stdout: str | None,
    stderr: str | None,
) -> CommandRunResult:
    """Return the result of a compilation or a run."""
    return CommandRunResult(status=status, execution_time=seconds, return_code=code, stdout=stdout, stderr=stderr)
