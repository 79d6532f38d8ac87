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
from typing import Any, Final

from sandbox.core import MIB, Limits, Program, ProgramRun, check_files
from sandbox.errors import InvalidProblem, SandboxError
from sandbox.languages import find_language
from sandbox.serve.bodies import Json, Refused
from sandbox.serve.wires import fields

LANGUAGES: Final = {"nodejs": "javascript", "js": "javascript"}
"""Names of SandboxFusion that are not ours."""
NAMES: Final = ("python", "cpp", "c", "java", "nodejs", "rust", "go")
"""As SandboxFusion names them; it has no C."""
SECONDS_MAX: Final = 600.0
PATIENCE_S: Final = 8.0
"""Clients wait ten seconds longer than compiling and running may take together; then they count the answer as lost."""
MEMORY_MB: Final = 1024
"""Where a request leaves it open."""
BACKSTOP_S: Final = 5.0
_KILLED: Final = -int(signal.SIGKILL)
_SIGNALS: Final = {"output": -int(signal.SIGXFSZ), "security": -int(signal.SIGSYS)}
_TIMES: Final = ("cpu", "wall")


def fusion_language(name: str) -> str:
    """Our name of a language. Raises Refused, with its name, for one that cannot be run here."""
    if name not in NAMES and name not in LANGUAGES:
        raise Refused(422, f"language={name!r}: cannot be run here; use one of {', '.join(NAMES)}")
    return find_language(LANGUAGES.get(name, name)).name


def limits_of(body: Mapping[str, Any], run_s: float) -> Limits:
    """`run_timeout` is CPU time, so that a loaded machine fails no honest program; the wall clock has five seconds
    more, that the answer comes before the client gives up.
    """
    memory = body.get("memory_limit_MB")
    if memory is None or memory == -1:
        memory = MEMORY_MB
    if not isinstance(memory, int) or isinstance(memory, bool) or memory < 1:
        raise fields.refusal("memory_limit_MB", memory, "a positive whole number, or -1")
    return Limits(cpu_s=run_s, wall_s=run_s + BACKSTOP_S, memory_bytes=memory * MIB)


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


def files_of(body: Mapping[str, Any]) -> dict[str, bytes]:
    """Files by name; those that are null are not there."""
    given = {name: value for name, value in fields.mapping(body, "files", {}).items() if value is not None}
    contents = (fields.from_base64(f"files[{name!r}]", value) for name, value in given.items())
    return dict(zip(names_inside("files", given), contents, strict=True))


def asked_files(body: Mapping[str, Any]) -> dict[str, str]:
    """Names of files to bring back: as they were asked for, with the name in the work directory."""
    return {name: name_inside("fetch_files", name) for name in fields.texts(body, "fetch_files", ())}


def names_inside(where: str, names: Iterable[str]) -> list[str]:
    """Names of files that are written into the work directory. Raises Refused where two are one file or a name leads
    outside, InvalidProblem for what no file can be called.
    """
    found: dict[str, str] = {}
    for name in names:
        inside = name_inside(where, name)
        if inside in found:
            raise Refused(400, f"{where}: {found[inside]!r} and {name!r}: are the same file; give it once")
        found[inside] = name
    check_files("run", tuple((name, "") for name in found), InvalidProblem)
    return list(found)


def name_inside(where: str, name: str) -> str:
    """A name in the work directory, where the program runs. Raises Refused for a path outside."""
    inside = posixpath.normpath(name)
    if inside.partition("/")[0] in ("", ".", ".."):
        raise Refused(422, f"{where}: {name!r}: must be a path relative to the directory in which the program runs")
    return inside


def program_of(body: Mapping[str, Any]) -> Program:
    return Program(fields.text(body, "code"), fusion_language(fields.text(body, "language")))


def as_response(done: ProgramRun, asked: Mapping[str, str]) -> Json:
    """The response of `/run_code`; ``asked``: names of fetched files, as they were asked for."""
    compiled, ran = _compile_result(done), _run_result(done)
    parts = [part for part in (compiled, ran) if part is not None]
    fine = all(part["status"] == "Finished" and part["return_code"] == 0 for part in parts)
    found = dict(done.files)
    cut = "; more was written than stands here" if done.cut else ""
    return {
        "status": "Success" if fine else "Failed",
        "message": f"{done.message}{cut}",
        "compile_result": compiled,
        "run_result": ran,
        "executor_pod_name": None,
        "files": {name: b64encode(found[inside]).decode() for name, inside in asked.items() if inside in found},
    }


def is_interpreted(language: str) -> bool:
    """Whether SandboxFusion knows no compilation of it: what cannot be parsed fails as it runs."""
    return language in ("python", "javascript")


def _compile_result(done: ProgramRun) -> Json | None:
    if done.compiled is None or is_interpreted(done.language):
        return None
    if not done.compiled:
        return not_compiled(done.compile_cause, done.compile_s, done.compile_log)
    return result("Finished", done.compile_s, 0, "", done.compile_log)


def not_compiled(cause: str, seconds: float, log: str) -> Json:
    """What a compilation that failed came to."""
    if cause in _TIMES:
        return result("TimeLimitExceeded", seconds, None, "", log)
    return result("Finished", seconds, 1, "", log)


def _run_result(done: ProgramRun) -> Json | None:
    if done.compiled is False:
        if not is_interpreted(done.language):
            return None
        return result("Finished", done.compile_s, 1, "", done.compile_log)
    out, err = (stream.decode("utf-8", "replace") for stream in (done.stdout, done.stderr))
    if done.cause in _TIMES:
        return result("TimeLimitExceeded", done.wall_s, None, out, err)
    return result("Finished", done.wall_s, return_code(done.exit_code, done.signal, done.cause), out, err)


def return_code(exit_code: int | None, signal_sent: int | None, cause: str) -> int:
    """What `subprocess` would say of such an end."""
    if exit_code is not None:
        return exit_code
    return -signal_sent if signal_sent else _SIGNALS.get(cause.partition(":")[0], _KILLED)


def result(status: str, seconds: float, code: int | None, stdout: str | None, stderr: str | None) -> Json:
    """What a compilation or a run came to."""
    return {"status": status, "execution_time": seconds, "return_code": code, "stdout": stdout, "stderr": stderr}
