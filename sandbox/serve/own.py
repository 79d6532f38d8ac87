"""Our own routes: programs to judge, and what the server says of itself.

POST /judge    problem, program             ──▶ a judgement, as `sandbox judge --json` prints it
POST /run      program, stdin, files, ...   ──▶ one run without a verdict
GET  /version /health /metrics
"""

from __future__ import annotations

import asyncio
import importlib.metadata
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, ConfigDict, FailFast, Field, PlainValidator, model_validator
from pydantic_core import PydanticCustomError
from starlette.responses import Response

from sandbox.core.checks import quoted, wrong_type
from sandbox.core.nouns import Judgement, Limits, Program
from sandbox.core.problem import Problem
from sandbox.core.program_run import ProgramRun
from sandbox.errors import ToolchainMissing
from sandbox.languages import toolchain
from sandbox.languages.language import Language
from sandbox.languages.table import LANGUAGES, find_language
from sandbox.serve.answers import ERRORS, AsciiJson, from_base64
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


class JudgeRequest(KnownFields):
    """A program to judge."""

    problem: Annotated[Any, checked_later(Problem | str)] = Field(
        description=f"or the name that the header {KEPT} of an answer gave it; 409 where it is not kept any more"
    )
    program: Annotated[Any, checked_later(Program | str)] = Field(description="or its source")
    turn: int = Field(0, ge=-_TURN_MAX, le=_TURN_MAX, description="jobs of the lowest turn go first")
    stop_at_first_failure: bool | None = Field(None, description="null: as the server was started")


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
    problem = service.problem(asked.problem)
    program = problem.program(asked.program)
    find_language(program.language)
    done = await service.pool.judge(
        problem, program, turn=asked.turn, stop_at_first_failure=asked.stop_at_first_failure
    )
    return AsciiJson(done.to_json(), headers={KEPT: service.problems.name(problem)})


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
