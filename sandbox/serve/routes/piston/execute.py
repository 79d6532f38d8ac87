"""Piston's routes, version 2.

POST /api/v2/execute    {language, files, stdin, args, run_timeout, ...}   ──▶ {run, compile, language, version}
GET  /api/v2/runtimes   the languages of this machine

Times are milliseconds and limits bytes, as Piston has them. open-r1's graders for contests (files `grader_config`,
`input.txt` and `correct_output.txt`) are answered by a judgement: stdout "1" or "0".
"""

from __future__ import annotations

import binascii
import signal
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sandbox.core.nouns import Limits, Program
from sandbox.core.program_run import ProgramRun
from sandbox.errors import ToolchainMissing
from sandbox.languages import toolchain
from sandbox.languages.table import LANGUAGES
from sandbox.serve.answers import AsciiJson
from sandbox.serve.bodies import Json, Refused, read_json
from sandbox.serve.bounds import RUN_S_MAX
from sandbox.serve.openapi import get, post
from sandbox.serve.routes.piston.graders import judge_by_config, wants_grader
from sandbox.serve.routes.shared import fields, file_names, runs
from sandbox.serve.service import Service

OPENAPI: Final = {
    "/api/v2/execute": post("Piston: run a program", fields.schema("language", "files"), fields.schema("run")),
    "/api/v2/runtimes": get("Piston: the languages of this machine"),
}
FULL: Final = {"/api/v2/execute": 503}
ALIASES: Final = {
    "python": ("py", "py3", "python3", "python3.11", "cf_python3"),
    "c": ("gcc",),
    "cpp": ("c++", "c++17", "c++20", "g++"),
    "java": (),
    "javascript": ("node-javascript", "node-js", "js"),
    "rust": ("rs",),
    "go": ("golang",),
}
"""Names in Piston, by ours. It calls C++ c++."""
_SHOWN: Final = {"cpp": "c++"}
RUN_MS: Final = 3000.0
_MS_MAX: Final = 1000 * RUN_S_MAX
_STATUS: Final = {"cpu": "TO", "wall": "TO", "output": "OL"}


def routes(service: Service) -> list[Route]:
    """The routes of this module."""

    async def execute(request: Request) -> Response:
        return AsciiJson(await _execute(service, await read_json(request)))

    return [
        Route("/api/v2/execute", execute, methods=["POST"]),
        Route("/api/v2/runtimes", _runtimes, methods=["GET"]),
    ]


async def _runtimes(request: Request) -> Response:
    found = []
    for name, aliases in ALIASES.items():
        try:
            version = toolchain.toolchain(LANGUAGES[name])
        except ToolchainMissing:
            continue
        found.append({"language": _SHOWN.get(name, name), "version": _number(version), "aliases": list(aliases)})
    return AsciiJson(found)


def _number(version: str) -> str:
    """The version alone, of a toolchain as judgements name it."""
    return version.rpartition(" ")[2]


async def _execute(service: Service, body: Json) -> Json:
    name = piston_language(fields.text(body, "language"))
    files = _files(body, LANGUAGES[name].source)
    run_s = fields.above_zero(body, "run_timeout", RUN_MS, most=_MS_MAX) / 1000
    fields.above_zero(body, "compile_timeout", RUN_MS, most=_MS_MAX)
    limits = _limits(body, run_s)
    head = {"language": _SHOWN.get(name, name), "version": _number(toolchain.toolchain(LANGUAGES[name]))}
    if wants_grader(files):
        return {**head, **await judge_by_config(service, name, files)}
    done = await service.pool.run(
        _program(name, files),
        stdin=fields.text(body, "stdin", ""),
        arguments=fields.texts(body, "args", ()),
        files=_beside(name, files),
        limits=limits,
    )
    return {**head, **_response(done)}


def piston_language(name: str) -> str:
    """Our name of a language. Raises Refused with its name."""
    for ours, aliases in ALIASES.items():
        if name in (ours, *aliases):
            return ours
    raise Refused(400, f"language={name!r}: is unknown here; GET /api/v2/runtimes lists what there is")


def _limits(body: Json, run_s: float) -> Limits:
    memory = body.get("run_memory_limit")
    limits = Limits(cpu_s=run_s, wall_s=run_s + runs.BACKSTOP_S)
    if memory in (None, -1):
        return limits
    if not isinstance(memory, int) or isinstance(memory, bool) or memory < 1:
        raise fields.refusal("run_memory_limit", memory, "bytes, or -1")
    return Limits(cpu_s=run_s, wall_s=run_s + runs.BACKSTOP_S, memory_bytes=memory)


def _files(body: Json, source: str) -> dict[str, str]:
    """Files by name, the first of which is the program: without a name it is called ``source``."""
    given = body.get("files")
    if not isinstance(given, list) or not given:
        raise fields.refusal("files", given, "a list of objects with name and content, the program first")
    names, contents = [], []
    for index, file in enumerate(given):
        if not isinstance(file, dict):
            raise fields.refusal(f"files[{index}]", file, "an object with name and content")
        name = fields.text(file, "name", "" if index == 0 else f"file{index}.code")
        names.append(source if index == 0 and not name else name)
        contents.append(_content(f"files[{index}]", file))
    return dict(zip(file_names.names_inside("files", names), contents, strict=True))


def _content(where: str, file: Json) -> str:
    content, encoding = fields.text(file, "content"), fields.text(file, "encoding", "utf8")
    if encoding == "utf8":
        return content
    if encoding == "base64":
        return fields.from_base64(f"{where}.content", content).decode("utf-8", "surrogateescape")
    if encoding == "hex":
        try:
            return binascii.unhexlify(content).decode("utf-8", "surrogateescape")
        except (ValueError, binascii.Error):
            raise fields.refusal(f"{where}.content", content, "hexadecimal") from None
    raise fields.refusal(f"{where}.encoding", encoding, "utf8, base64 or hex")


def _program(language: str, files: dict[str, str]) -> Program:
    """One source, or the sources of the language, of which the first is where the program starts."""
    suffixes = LANGUAGES[language].suffixes
    (first, source), *others = files.items()
    sources = {name: text for name, text in others if name.endswith(suffixes)}
    if not sources:
        return Program(source, language)
    entry = "" if LANGUAGES[language].starts_in_class else first
    return Program(language=language, files=((first, source), *sources.items()), entry=entry)


def _beside(language: str, files: dict[str, str]) -> dict[str, str]:
    """The other files, in the program's work directory."""
    _, *others = files.items()
    return {name: text for name, text in others if not name.endswith(LANGUAGES[language].suffixes)}


def _response(done: ProgramRun) -> Json:
    found: Json = {}
    if done.compiled is not None and not runs.is_interpreted(done.language):
        found["compile"] = _compile_stage(done)
    if done.compiled is False:
        if runs.is_interpreted(done.language):
            return {"run": _stage("", done.compile_log, 1, None, "RE", done.compile_s)}
        return found | {"run": _stage("", "", None, None, None, 0.0)}
    out, err = (stream.decode("utf-8", "replace") for stream in (done.stdout, done.stderr))
    status = _STATUS.get(done.cause) or ("SG" if done.signal or done.cause else "RE" if done.exit_code else None)
    number = -runs.return_code(None, done.signal, done.cause) if done.signal or done.exit_code is None else None
    stage = _stage(out, err, done.exit_code, number, status, done.wall_s)
    usage = {"cpu_time": round(done.cpu_s * 1000), "memory": done.memory_bytes, "message": done.message or None}
    return found | {"run": stage | usage}


def _compile_stage(done: ProgramRun) -> Json:
    if done.compile_cause:
        status = _STATUS.get(done.compile_cause, "SG")
        return _stage("", done.compile_log, None, signal.SIGKILL, status, done.compile_s)
    code = int(not done.compiled)
    return _stage("", done.compile_log, code, None, "RE" if code else None, done.compile_s)


def _stage(out: str, err: str, code: int | None, number: int | None, status: str | None, seconds: float) -> Json:
    name = signal.Signals(number).name if number else None
    ends: dict[str, Any] = {"code": code, "signal": name, "status": status, "wall_time": round(seconds * 1000)}
    return {"stdout": out, "stderr": err, "output": out + err, **ends}
