"""SandboxFusion's routes, for those who speak to such a server: verl, SkyRL, ROLL, tinker-cookbook, `sandbox_fusion`.

POST /run_code      a program, run once          POST /run_jupyter   the cells of a notebook
POST /submit        an answer, judged            GET  /v1/ping, /list_datasets

Where this server is at fault, or has more to do than it can, the answer is 504: verl asks again, and takes any other
failure for a test that did not pass.
"""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sandbox.serve.answers import AsciiJson
from sandbox.serve.bodies import Json, read_json
from sandbox.serve.openapi import get, post
from sandbox.serve.routes.sandbox_fusion.jupyter import run_notebook
from sandbox.serve.routes.sandbox_fusion.run_code import run_code
from sandbox.serve.routes.sandbox_fusion.submit import DATASETS, row_of, submit
from sandbox.serve.routes.shared import fields
from sandbox.serve.service import Service

OPENAPI: Final = {
    "/run_code": post("SandboxFusion: run a program once", fields.schema("code", "language"), fields.schema("status")),
    "/run_jupyter": post("SandboxFusion: run cells", fields.schema("cells"), fields.schema("status", "cells")),
    "/submit": post(
        "SandboxFusion: judge an answer to the problem in config.provided_data",
        fields.schema("dataset", "id", "completion", "config"),
        fields.schema("accepted", "tests"),
    ),
    "/v1/ping": get('"pong"'),
    "/list_datasets": get("SandboxFusion: the kinds that /submit takes"),
    "/list_ids": post("SandboxFusion: ids of config.provided_data", fields.schema("config"), {"type": "array"}),
    "/get_prompts": post(
        "SandboxFusion: statements of config.provided_data", fields.schema("config"), {"type": "array"}
    ),
    "/get_prompt_by_id": post("SandboxFusion: one of them", fields.schema("config", "id"), fields.schema("prompt")),
    "/get_metrics": post("SandboxFusion: nothing beside the results", fields.schema(), fields.schema()),
    "/get_metrics_function": post("SandboxFusion: none", fields.schema(), fields.schema("function")),
}
FULL: Final = dict.fromkeys(("/run_code", "/run_jupyter", "/submit"), 504)


def routes(service: Service) -> list[Route]:
    """The routes of this module."""

    async def run(request: Request) -> Response:
        return AsciiJson(await run_code(service, await read_json(request)))

    async def run_jupyter(request: Request) -> Response:
        return AsciiJson(await run_notebook(service, await read_json(request)))

    async def judge(request: Request) -> Response:
        return AsciiJson(await submit(service, await read_json(request)))

    return [
        Route("/run_code", run, methods=["POST"]),
        Route("/run_jupyter", run_jupyter, methods=["POST"]),
        Route("/submit", judge, methods=["POST"]),
        Route("/v1/ping", _ping, methods=["GET"]),
        Route("/list_datasets", _datasets, methods=["GET"]),
        Route("/list_ids", _ids, methods=["POST"]),
        Route("/get_prompts", _prompts, methods=["POST"]),
        Route("/get_prompt_by_id", _prompt, methods=["POST"]),
        Route("/get_metrics", _metrics, methods=["POST"]),
        Route("/get_metrics_function", _no_function, methods=["POST"]),
    ]


async def _ping(request: Request) -> Response:
    return AsciiJson("pong")


async def _datasets(request: Request) -> Response:
    """The kinds that `/submit` takes: no data lies here, each call brings its problem."""
    return AsciiJson(list(DATASETS))


async def _ids(request: Request) -> Response:
    return AsciiJson([_id(row) for row in _rows(await read_json(request))])


async def _prompts(request: Request) -> Response:
    body = await read_json(request)
    offset, limit = (body.get(name, default) for name, default in (("offset", 0), ("limit", 1_000_000)))
    for name, value in (("offset", offset), ("limit", limit)):
        if not isinstance(value, int) or value < 0:
            raise fields.refusal(name, value, "a whole number from 0 up")
    return AsciiJson([_as_prompt(row) for row in _rows(body)[offset : offset + limit]])


async def _prompt(request: Request) -> Response:
    body = await read_json(request)
    return AsciiJson(_as_prompt(row_of(fields.mapping(body, "config"), body.get("id"))))


async def _metrics(request: Request) -> Response:
    return AsciiJson({})


async def _no_function(request: Request) -> Response:
    return AsciiJson({"function": None})


def _rows(body: Json) -> list[Json]:
    given = fields.mapping(body, "config").get("provided_data")
    rows: list[Any] = given if isinstance(given, list) else [given]
    if not all(isinstance(row, dict) for row in rows):
        raise fields.refusal("config.provided_data", given, "the rows of a data set: this server has none")
    return rows


def _id(row: Json) -> Any:
    return row.get("id", row.get("task_id"))


def _as_prompt(row: Json) -> Json:
    """The statement as it stands in the row, without words of ours."""
    labels = row.get("labels")
    prompt = fields.text(row, "prompt", "") or fields.text(row, "content", "")
    return {"id": _id(row), "prompt": prompt, "labels": labels if isinstance(labels, dict) else {}}
