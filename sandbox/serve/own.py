"""Our own routes: programs to judge, and what the server says of itself.

POST /judge         problem, program             ──▶ a judgement, as `sandbox judge --json` prints it
POST /judge/batch   jobs, and a problem for all  ──▶ JSON lines in order of finishing, each with the job's index
POST /run           program, stdin, files, ...   ──▶ one run without a verdict
GET  /version /health /metrics
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, ConfigDict, FailFast, Field, PlainValidator, model_validator
from pydantic_core import PydanticCustomError
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from sandbox.core.checks import quoted, wrong_type
from sandbox.core.nouns import Judgement, Limits, Program
from sandbox.core.problem import Problem
from sandbox.core.program_run import ProgramRun
from sandbox.errors import SandboxError, ToolchainMissing
from sandbox.languages import toolchain
from sandbox.languages.language import Language
from sandbox.languages.table import LANGUAGES, find_language
from sandbox.serve.answers import ERRORS, AsciiJson, ErrorInfo, Refused, error_body, from_base64
from sandbox.serve.bounds import JOBS_MAX
from sandbox.serve.service import MEDIA_TYPE, Service

KEPT: Final = "problem-kept"
"""The header of an answer with the name by which its problem may be asked for again."""
_TURN_MAX: Final = 1 << 53
router = APIRouter(tags=["sandbox"])
Texts = Annotated[list[str], FailFast()]


def checked_later(kind: Any) -> PlainValidator:
    """A field of this JSON schema that the route checks; texts in it may hold any bytes, as surrogates."""
    return PlainValidator(lambda value: value, json_schema_input_type=kind)


class KnownFields(BaseModel):
    """A request that has no other fields than these."""

    model_config = ConfigDict(strict=True)

    @model_validator(mode="before")
    @classmethod
    def _known(cls, given: Any) -> Any:
        if isinstance(given, dict) and (unknown := given.keys() - cls.model_fields.keys()):
            known = {"name": quoted(min(unknown)), "known": ", ".join(cls.model_fields)}
            raise PydanticCustomError("unknown", "unknown field {name}; known fields: {known}", known)
        return given


class Job(KnownFields):
    """A program to judge; in a batch, what is left out is that of the batch."""

    problem: Annotated[Any, checked_later(Problem | str)] = Field(
        None, description=f"or the name that the header {KEPT} of an answer gave it; 409 where it is not kept any more"
    )
    program: Annotated[Any, checked_later(Program | str)] = Field(None, description="or its source")
    turn: int = Field(0, ge=-_TURN_MAX, le=_TURN_MAX, description="jobs of the lowest turn go first")
    stop_at_first_failure: bool | None = Field(None, description="null: as the server was started")


class JudgeRequest(Job):
    """A program to judge by itself."""

    problem: Annotated[Any, checked_later(Problem | str)]
    program: Annotated[Any, checked_later(Program | str)]


class BatchRequest(Job):
    """Programs to judge."""

    jobs: Annotated[list[Job], FailFast()] = Field(max_length=JOBS_MAX)


class BatchLine(BaseModel):
    """The result of one job of a batch."""

    index: int
    judgement: Judgement | None = None
    error: ErrorInfo | None = None


class RunRequest(KnownFields):
    """A program to run once, without a verdict."""

    program: Annotated[Any, checked_later(Program | str)]
    stdin: Annotated[Any, checked_later(str)] = ""
    arguments: Annotated[Any, checked_later(list[str])] = ()
    files: Annotated[Any, checked_later(dict[str, str])] = Field({}, description="contents in base64, by name")
    fetch_files: Annotated[Any, checked_later(list[str])] = ()
    limits: Annotated[Any, checked_later(Limits | None)] = None
    turn: int = Field(0, ge=-_TURN_MAX, le=_TURN_MAX)


async def service_of(request: Request) -> Service:
    """The service of the application that a request came to."""
    found: Service = request.app.state.service
    return found


Serves = Annotated[Service, Depends(service_of)]


@router.post("/judge", response_model=Judgement, responses=ERRORS)
async def judge_asked(asked: JudgeRequest, service: Serves) -> Response:
    """Judge a program."""
    job = _job(service, asked, asked)
    done = await service.pool.judge(**job)
    return AsciiJson(done.to_json(), headers={KEPT: service.problems.name(job["problem"])})


@router.post("/judge/batch", responses={**ERRORS, 200: {"model": BatchLine, "content": {"application/x-ndjson": {}}}})
async def judge_batch(batch: BatchRequest, service: Serves) -> Response:
    """Judge many programs: a JSON line for each, as they end."""
    jobs = []
    for number, asked in enumerate(batch.jobs):
        try:
            jobs.append(_job(service, asked, batch))
        except (Refused, SandboxError) as error:
            raise Refused(getattr(error, "status", 422), f"jobs[{number}]: {error}") from None
        await asyncio.sleep(0)  # others are answered between
    return _Lines(_judged(service, jobs))


@router.post("/run", response_model=ProgramRun, responses=ERRORS)
async def run(given: RunRequest, service: Serves) -> Response:
    """Run a program once, without a verdict."""
    if not isinstance(given.files, dict):
        raise wrong_type("run", "files", given.files, "an object of names and contents as base64")
    files = {name: from_base64(name, content) for name, content in given.files.items()}
    asked = {name: getattr(given, name) for name in given.model_fields_set}
    return AsciiJson((await service.pool.run(**(asked | {"files": files}))).to_json())


@router.get("/health")
async def health(service: Serves) -> Response:
    """Report whether the server takes requests: 503 while it drains. Needs no token."""
    status = "draining" if service.draining else "ok"
    return AsciiJson({"status": status, "in_hand": service.in_hand}, 503 if service.draining else 200)


@router.get("/version")
async def version(service: Serves) -> Response:
    """Languages with their toolchains (null: not installed), workers and bounds of this server."""
    languages = await asyncio.to_thread(lambda: {name: _toolchain(each) for name, each in LANGUAGES.items()})
    bounds = {name: getattr(service.bounds, name) for name in ("queue", "body_bytes")}
    how = {"workers": service.pool.workers, "isolation": service.pool.isolation, "packages": list(service.packages)}
    return AsciiJson({"version": own_version(), **how, "languages": languages, "bounds": bounds})


@router.get("/metrics")
async def metrics(service: Serves) -> Response:
    """Numbers in Prometheus' text format."""
    return Response(service.metrics.text(), media_type=MEDIA_TYPE)


def own_version() -> str:
    """The version of this package; "0" where it is run from its source."""
    return next((found.version for found in importlib.metadata.distributions(name="overlap-rl")), "0")


def _toolchain(language: Language) -> str | None:
    try:
        return toolchain.toolchain(language)
    except ToolchainMissing:
        return None


def _job(service: Service, asked: Job, batch: Job) -> dict[str, Any]:
    """The arguments of `Pool.judge`. Raises Refused, InvalidProblem, InvalidProgram."""
    given = asked.model_fields_set
    if missing := [name for name in ("problem", "program") if name not in given | batch.model_fields_set]:
        raise Refused(422, f"{missing[0]}: is missing")
    found = {name: getattr(asked if name in given else batch, name) for name in Job.model_fields}
    problem = service.problem(found["problem"])
    program = problem.program(found["program"])
    find_language(program.language)
    return {**found, "problem": problem, "program": program}


async def _judged(service: Service, jobs: list[dict[str, Any]]) -> AsyncGenerator[bytes]:
    """A line per job, as they end. Only some wait for the pool at a time: other clients' jobs come between."""
    left, running = iter(enumerate(jobs)), set[asyncio.Task[bytes]]()
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
        found = {"judgement": (await service.pool.judge(**job)).to_json()}
    except Exception as error:
        found = error_body(error)[1]
    return json.dumps({"index": index, **found}, separators=(",", ":")).encode() + b"\n"


class _Lines(StreamingResponse):
    """JSON lines. What makes them has ended when this has, also where the client has left between two."""

    media_type = "application/x-ndjson"

    def __init__(self, lines: AsyncGenerator[bytes]) -> None:
        super().__init__(lines)
        self._lines = lines

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._lines):
            await super().__call__(scope, receive, send)
