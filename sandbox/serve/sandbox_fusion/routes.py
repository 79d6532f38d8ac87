"""SandboxFusion's routes.

POST /run_code      a program, run once          POST /run_jupyter   the cells of a notebook
POST /submit        an answer, judged            GET  /v1/ping, /list_datasets

Where this server is at fault, or has more to do than it can, the answer is 504: verl asks again, and takes any other
failure for a test that did not pass.
"""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter
from starlette.responses import Response

from sandbox.serve.answers import ERRORS, AsciiJson, Refused
from sandbox.serve.own import Serves
from sandbox.serve.sandbox_fusion.jupyter import run_notebook
from sandbox.serve.sandbox_fusion.models import (
    DatasetRequest,
    EvalResult,
    PromptRow,
    RunCodeRequest,
    RunCodeResponse,
    RunJupyterRequest,
    RunJupyterResponse,
    SubmitRequest,
)  # fmt: skip
from sandbox.serve.sandbox_fusion.run_code import run_asked
from sandbox.serve.sandbox_fusion.submit import DATASETS, Row, judge_answer, row_id, row_of, rows_of

ASKED_AGAIN: Final = ("/run_code", "/run_jupyter", "/submit")
"""Paths whose clients ask again after 504, and know no 503."""
router = APIRouter(tags=["SandboxFusion"], responses=ERRORS)


@router.post("/run_code", response_model=RunCodeResponse)
async def run_code(asked: RunCodeRequest, service: Serves) -> Response:
    """Run a program once."""
    return AsciiJson(await run_asked(service, asked))


@router.post("/run_jupyter", response_model=RunJupyterResponse)
async def run_jupyter(asked: RunJupyterRequest, service: Serves) -> Response:
    """Run the cells of a notebook."""
    return AsciiJson(await run_notebook(service, asked))


@router.post("/submit", response_model=EvalResult)
async def submit(asked: SubmitRequest, service: Serves) -> Response:
    """Judge an answer to the problem in config.provided_data."""
    return AsciiJson(await judge_answer(service, asked))


@router.get("/v1/ping")
async def ping() -> str:
    """Say "pong"."""
    return "pong"


@router.get("/list_datasets")
async def list_datasets() -> list[str]:
    """List the kinds that /submit takes: no data is stored here, each call brings its problem."""
    return list(DATASETS)


@router.post("/list_ids", response_model=list[int | str | None])
async def list_ids(asked: DatasetRequest) -> Response:
    """List the ids of config.provided_data."""
    return AsciiJson([row_id(row) for row in rows_of(asked.config)])


@router.post("/get_prompts", response_model=list[PromptRow])
async def get_prompts(asked: DatasetRequest) -> Response:
    """List the statements of config.provided_data."""
    rows = rows_of(asked.config)[asked.offset : asked.offset + asked.limit]
    return AsciiJson([_as_prompt(row) for row in rows])


@router.post("/get_prompt_by_id", response_model=PromptRow)
async def get_prompt_by_id(asked: DatasetRequest) -> Response:
    """Give one statement of config.provided_data."""
    return AsciiJson(_as_prompt(row_of(asked.config, asked.id)))


@router.post("/get_metrics")
async def get_metrics(asked: DatasetRequest) -> dict[str, Any]:
    """Give nothing beside the results."""
    return {}


@router.post("/get_metrics_function")
async def get_metrics_function(asked: DatasetRequest) -> dict[str, None]:
    """Give none."""
    return {"function": None}


def _as_prompt(row: Row) -> dict[str, Any]:
    """Return the statement as it is in the row, without words of ours."""
    labels, prompt = row.get("labels"), row.get("prompt") or row.get("content") or ""
    if not isinstance(prompt, str):
        raise Refused(422, "config.provided_data: prompt and content must be text")
    return {"id": row_id(row), "prompt": prompt, "labels": labels if isinstance(labels, dict) else {}}
