"""Our own routes: programs to judge, and what the server says of itself.

POST /judge         problem, program             ──▶ a judgement, as `sandbox judge --json` prints it
POST /judge/batch   jobs, and a problem for all  ──▶ JSON lines in order of finishing, each with the job's index
GET  /version /health /metrics /openapi.json
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
from base64 import b64decode
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from sandbox.core.checks import quoted, wrong_type
from sandbox.core.nouns import Judgement, Limits, Program
from sandbox.core.problem import Problem
from sandbox.core.program_run import ProgramRun
from sandbox.errors import SandboxError, ToolchainMissing
from sandbox.languages import toolchain
from sandbox.languages.language import Language
from sandbox.languages.table import LANGUAGES, find_language
from sandbox.serve.answers import AsciiJson, error_body
from sandbox.serve.bodies import Refused, check_fields, read_json
from sandbox.serve.bounds import JOBS_MAX
from sandbox.serve.metrics import metrics_text
from sandbox.serve.openapi import document, get, post, reference
from sandbox.serve.routes import route_modules
from sandbox.serve.service import Service

KEPT: Final = "problem-kept"
"""The header of an answer with the name by which its problem may be asked for again."""
_TURN_MAX: Final = 1 << 53
_RUN: Final = ("program", "stdin", "arguments", "files", "fetch_files", "limits", "turn")
_JOB: Final = ("problem", "program", "turn", "stop_at_first_failure")


def routes(service: Service) -> list[Route]:
    """The routes of this module."""

    async def judge(request: Request) -> Response:
        job = _job(service, await read_json(request), {})
        done = await service.pool.judge(**job)
        return AsciiJson(done.to_json(), headers={KEPT: service.problem_name(job["problem"])})

    async def run(request: Request) -> Response:
        return AsciiJson((await service.pool.run(**_run(await read_json(request)))).to_json())

    async def batch(request: Request) -> Response:
        body = await read_json(request)
        check_fields(body, ("jobs", *_JOB), required=("jobs",))
        given = body.pop("jobs")
        if not isinstance(given, list) or not all(isinstance(job, dict) for job in given):
            raise Refused(422, "jobs: must be a list of JSON objects, each with program, and problem")
        if len(given) > JOBS_MAX:
            raise Refused(413, f"jobs: {len(given)} of them; at most {JOBS_MAX} are taken, send several batches")
        jobs = []
        for n, job in enumerate(given):
            jobs.append(_named(f"jobs[{n}]", service, job, body))
            await asyncio.sleep(0)  # others are answered between
        return StreamingResponse(_lines(service, jobs), media_type="application/x-ndjson")

    async def health(request: Request) -> Response:
        status = "draining" if service.draining else "ok"
        return AsciiJson({"status": status, "in_hand": service.in_hand}, 503 if service.draining else 200)

    async def version(request: Request) -> Response:
        return AsciiJson(await asyncio.to_thread(_version, service))

    async def metrics(request: Request) -> Response:
        return Response(metrics_text(service), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def openapi(request: Request) -> Response:
        return AsciiJson(document((module.OPENAPI for module in route_modules()), _own_version()))

    return [
        Route("/judge", judge, methods=["POST"]),
        Route("/judge/batch", batch, methods=["POST"]),
        Route("/run", run, methods=["POST"]),
        Route("/health", health, methods=["GET"]),
        Route("/version", version, methods=["GET"]),
        Route("/metrics", metrics, methods=["GET"]),
        Route("/openapi.json", openapi, methods=["GET"]),
    ]


def _version(service: Service) -> dict[str, Any]:
    """What this server is: the toolchain of each language, None where it is not installed."""
    found = {name: _toolchain(language) for name, language in LANGUAGES.items()}
    bounds = {name: getattr(service.bounds, name) for name in ("queue", "body_bytes")}
    how = {"workers": service.pool.workers, "isolation": service.pool.isolation, "packages": list(service.packages)}
    return {"version": _own_version(), **how, "languages": found, "bounds": bounds}


def _own_version() -> str:
    try:
        return importlib.metadata.version("overlap-rl")
    except importlib.metadata.PackageNotFoundError:  # run from its source
        return ""


def _toolchain(language: Language) -> str | None:
    try:
        return toolchain.toolchain(language)
    except ToolchainMissing:
        return None


def _named(where: str, service: Service, job: Mapping[str, Any], shared: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return _job(service, job, shared)
    except (Refused, SandboxError) as error:
        raise Refused(422, f"{where}: {error}") from None


def _job(service: Service, given: Mapping[str, Any], shared: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `Pool.judge`. Raises Refused, InvalidProblem, InvalidProgram."""
    check_fields(given, _JOB)
    job = {**shared, **given}
    check_fields(job, _JOB, required=("problem", "program"))
    stop = job.get("stop_at_first_failure")
    if stop is not None and not isinstance(stop, bool):
        raise wrong_type("judge", "stop_at_first_failure", stop, "true or false")
    given_problem = job["problem"]
    if isinstance(given_problem, str):
        problem = service.named_problem(given_problem)
        if problem is None:
            raise Refused(409, f"problem={quoted(given_problem)}: is not kept here, or not any more: send it whole")
    else:
        problem = service.problem(given_problem)
    program = problem.program(job["program"])
    find_language(program.language)
    return {"problem": problem, "program": program, "turn": _turn(job), "stop_at_first_failure": stop}


def _run(body: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `Pool.run`, which checks them. Raises Refused, InvalidProblem."""
    check_fields(body, _RUN, required=("program",))
    found = {**body, "turn": _turn(body)}
    files = body.get("files", {})
    if not isinstance(files, dict) or not all(isinstance(content, str) for content in files.values()):
        raise wrong_type("run", "files", files, "an object of names and contents as base64")
    try:
        found["files"] = {name: b64decode(content, validate=True) for name, content in files.items()}
    except ValueError as error:
        raise Refused(422, f"files: a content is no base64: {error}") from None
    return found


def _turn(given: Mapping[str, Any]) -> int:
    turn = given.get("turn", 0)
    if not isinstance(turn, int) or isinstance(turn, bool) or abs(turn) > _TURN_MAX:
        raise wrong_type("judge", "turn", turn, f"a whole number of at most {_TURN_MAX}")
    return turn


async def _lines(service: Service, jobs: Iterable[Mapping[str, Any]]) -> AsyncIterator[bytes]:
    """One line per job, as they end. Only some wait for the pool at a time: other clients' jobs come between."""
    left = iter(enumerate(jobs))
    running = set[asyncio.Task[bytes]]()
    try:
        while True:
            while len(running) < 4 * service.pool.workers and (job := next(left, None)) is not None:
                running.add(asyncio.create_task(_line(service, *job)))
            if not running:
                return
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                yield task.result()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _line(service: Service, index: int, job: Mapping[str, Any]) -> bytes:
    try:
        found: dict[str, Any] = {"judgement": (await service.pool.judge(**job)).to_json()}
    except Exception as error:
        found = error_body(error)[1]
    return json.dumps({"index": index, **found}, separators=(",", ":")).encode() + b"\n"


_PROGRAM: Final = {"anyOf": [{"type": "string", "description": "its source"}, reference(Program)]}
_JOB_FIELDS: Final = {
    "problem": {
        "anyOf": [
            reference(Problem),
            {
                "type": "string",
                "description": f"what an answer's header {KEPT} said; 409 where it is not kept any more",
            },
        ]
    },
    "program": _PROGRAM,
    "turn": {"type": "integer", "default": 0, "description": "jobs of the lowest turn go first"},
    "stop_at_first_failure": {"type": ["boolean", "null"], "description": "null: as the server was started"},
}
_JOB_SCHEMA: Final = {"type": "object", "properties": _JOB_FIELDS, "additionalProperties": False}
_RUN_FIELDS: Final = {
    "program": _PROGRAM,
    "stdin": {"type": "string", "default": ""},
    "arguments": {"type": "array", "items": {"type": "string"}},
    "files": {"type": "object", "additionalProperties": {"type": "string", "contentEncoding": "base64"}},
    "fetch_files": {"type": "array", "items": {"type": "string"}},
    "limits": {"anyOf": [reference(Limits), {"type": "null"}]},
    "turn": _JOB_FIELDS["turn"],
}
_LINE: Final = {
    "type": "object",
    "properties": {"index": {"type": "integer"}, "judgement": reference(Judgement), "error": {"type": "object"}},
    "required": ["index"],
}
_BATCH: Final = {
    "type": "object",
    "properties": {"jobs": {"type": "array", "maxItems": JOBS_MAX, "items": _JOB_SCHEMA}, **_JOB_FIELDS},
    "required": ["jobs"],
}
OPENAPI: Final = {
    "/judge": post("judge a program", {**_JOB_SCHEMA, "required": ["problem", "program"]}, reference(Judgement)),
    "/judge/batch": post("judge many programs; a line for each, as they end", _BATCH, _LINE, "application/x-ndjson"),
    "/run": post(
        "run a program once, without a verdict",
        {"type": "object", "properties": _RUN_FIELDS, "required": ["program"]},
        reference(ProgramRun),
    ),
    "/health": get("200, or 503 while the server drains; needs no token"),
    "/version": get("languages, workers and bounds of this server"),
    "/metrics": get("numbers in Prometheus' text format", "text/plain"),
    "/openapi.json": get("this document"),
}
