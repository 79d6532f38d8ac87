"""SandboxFusion's requests and results: `/run_code`, and what `/submit` and `/run_jupyter` share with it.

    Finished            the program ended itself: return_code is its exit code, or minus the signal that ended it
    TimeLimitExceeded   a limit on time ended it, CPU or wall
    Success, Failed     Failed where a return code is not 0 or a limit on time was met; never for a fault of ours

A limit that is none of time, as memory, ends a program as the kernel would, by SIGKILL; `message` says which it was.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from typing import Any, Final

from sandbox.core.nouns import MIB, Limits, Program
from sandbox.core.program_run import ProgramRun
from sandbox.languages.table import find_language
from sandbox.serve.bodies import Json, Refused
from sandbox.serve.bounds import MEMORY_BYTES, RUN_S_MAX
from sandbox.serve.routes.shared import fields, file_names, runs
from sandbox.serve.service import Service

LANGUAGES: Final = {"nodejs": "javascript", "js": "javascript"}
"""Names of SandboxFusion that are not ours."""
NAMES: Final = ("python", "cpp", "c", "java", "nodejs", "rust", "go")
"""As SandboxFusion names them; it has no C."""
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
        memory = MEMORY_BYTES // MIB
    if not isinstance(memory, int) or isinstance(memory, bool) or memory < 1:
        raise fields.refusal("memory_limit_MB", memory, "a positive whole number, or -1")
    return Limits(cpu_s=run_s, wall_s=run_s + runs.BACKSTOP_S, memory_bytes=memory * MIB)


def files_of(body: Mapping[str, Any]) -> dict[str, bytes]:
    """Files by name; those that are null are not there."""
    given = {name: value for name, value in fields.mapping(body, "files", {}).items() if value is not None}
    contents = (fields.from_base64(f"files[{name!r}]", value) for name, value in given.items())
    return dict(zip(file_names.names_inside("files", given), contents, strict=True))


def asked_files(body: Mapping[str, Any]) -> dict[str, str]:
    """Names of files to bring back: as they were asked for, with the name in the work directory."""
    return {name: file_names.name_inside("fetch_files", name) for name in fields.texts(body, "fetch_files", ())}


def program_of(body: Mapping[str, Any]) -> Program:
    return Program(fields.text(body, "code"), fusion_language(fields.text(body, "language")))


async def run_code(service: Service, body: Json) -> Json:
    """The response of `/run_code`. Raises Refused, InvalidProblem, SandboxError."""
    run_s = fields.above_zero(body, "run_timeout", 10.0, most=RUN_S_MAX)
    compile_s = fields.above_zero(body, "compile_timeout", 10.0, most=RUN_S_MAX)
    asked = asked_files(body)
    run = service.pool.run(
        program_of(body),
        stdin=fields.text(body, "stdin", ""),
        files=files_of(body),
        fetch_files=tuple(asked.values()),
        limits=limits_of(body, run_s),
        asserts=True,  # SandboxFusion starts Java with -ea
    )
    async with runs.answered_within(compile_s + run_s + runs.PATIENCE_S):
        return as_response(await run, asked)


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


def _compile_result(done: ProgramRun) -> Json | None:
    if done.compiled is None or runs.is_interpreted(done.language):
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
        if not runs.is_interpreted(done.language):
            return None
        return result("Finished", done.compile_s, 1, "", done.compile_log)
    out, err = (stream.decode("utf-8", "replace") for stream in (done.stdout, done.stderr))
    if done.cause in _TIMES:
        return result("TimeLimitExceeded", done.wall_s, None, out, err)
    return result("Finished", done.wall_s, runs.return_code(done.exit_code, done.signal, done.cause), out, err)


def result(status: str, seconds: float, code: int | None, stdout: str | None, stderr: str | None) -> Json:
    """What a compilation or a run came to."""
    return {"status": status, "execution_time": seconds, "return_code": code, "stdout": stdout, "stderr": stderr}
