"""Refusals, and what an error becomes for a client: one JSON object, and a status that says who is at fault.

{"error": {"type": "InvalidProblem", "message": "problem 'sum': cases=() can tell nothing; ..."}}
"""

from __future__ import annotations

import json
import traceback
from base64 import b64decode
from typing import Any, Final

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from sandbox.core.checks import printable, quoted
from sandbox.errors import CheckerError, InvalidProblem, InvalidProgram, PoolClosed, SandboxError, ToolchainMissing
from sandbox.serve.bounds import RETRY_S

_STATUS: Final[tuple[tuple[type[SandboxError], int], ...]] = (
    (InvalidProblem, 422),
    (InvalidProgram, 422),
    (CheckerError, 422),  # the problem's author is at fault, and asking again does not help
    (ToolchainMissing, 501),
    (PoolClosed, 503),
    (SandboxError, 504),
)
"""504 is what clients of other frameworks ask again for."""


class Refused(Exception):
    """A request that cannot be answered as it is: ``status`` is 4xx, the message names field, value, way out."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Busy(Exception):
    """The server takes no further request now. The client may ask again after RETRY_S."""


class Draining(Busy):
    """The server finishes what it has, and will end."""


class ClientGone(Exception):
    """The client has closed its connection: no answer would be read."""


class ErrorInfo(BaseModel):
    """The kind of an error, and what it says."""

    type: str
    message: str


class Error(BaseModel):
    """The body of every answer that is no success."""

    error: ErrorInfo


ERRORS: Final[dict[int | str, dict[str, Any]]] = {
    status: {"model": Error, "description": text}
    for status, text in {
        400: "the body is no JSON, or two files have the same name",
        401: "the token is missing or wrong",
        403: "a page of another site asks",
        408: "the body came too slowly",
        409: "the name of a problem is not known, or not any more: send it whole",
        413: "the body is too long",
        422: "a field is wrong; the message names it, its value, and the way out",
        501: "this server lacks the language's compiler",
        503: "the queue is full, or the server drains: ask again after the seconds of Retry-After",
        504: "the sandbox failed, not the program: ask again",
    }.items()
}
"""Descriptions for the OpenAPI document."""


_HEADERS: Final = {
    401: {"www-authenticate": "Bearer"},
    408: {"connection": "close"},  # the rest of the body is not read
    413: {"connection": "close"},
    503: {"retry-after": str(RETRY_S)},
}


class AsciiJson(Response):
    """JSON in ASCII: what a program printed may hold bytes that are no UTF-8, as lone surrogates."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        if isinstance(content, BaseModel):
            content = content.model_dump()
        return json.dumps(content, separators=(",", ":")).encode()


def error_body(error: Exception) -> tuple[int, dict[str, Any]]:
    """Return status and body for an error. An unforeseen one is our fault: it goes to stderr, and is a 504 too."""
    kind, text = type(error).__name__, str(error)
    match error:
        case Busy():
            status = 503
        case Refused():
            status = error.status
        case RequestValidationError():
            kind, (status, text) = "Refused", _wrong_field(error)
        case HTTPException():
            kind, status, text = "Refused", error.status_code, error.detail
            text += f"; use {error.headers['Allow']}" if error.headers else ""
        case SandboxError():
            status = next(status for known, status in _STATUS if isinstance(error, known))
        case _:
            traceback.print_exception(error)
            status, kind = 504, "SandboxError"
    return status, {"error": {"type": kind, "message": printable(text or kind)}}


def error_response(error: Exception, status: int | None = None) -> Response:
    """The answer that tells an error; ``status`` instead of the usual one."""
    usual, body = error_body(error)
    return AsciiJson(body, status or usual, _HEADERS.get(usual))


def _wrong_field(error: RequestValidationError) -> tuple[int, str]:
    """Status and message for a body that does not fit the route's model."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return 400, f"the body is no JSON: {first['ctx']['error']}"
    where = "".join(f"[{part!r}]" if isinstance(part, int) else f".{part}" for part in first["loc"][1:]).lstrip(".")
    if first["type"] == "unknown":
        return 422, f"{where}: {first['msg']}".removeprefix(": ")
    where = where or "the body"
    if first["type"] == "missing":
        return 422, f"{where}: is missing"
    return 422, f"{where}={quoted(first['input'])}: {first['msg'].replace('Input should be', 'must be')}"


def from_base64(name: str, text: Any) -> bytes:
    """The content of a file in a request. Raises Refused."""
    try:
        return b64decode(text, validate=True)
    except (TypeError, ValueError):
        raise Refused(422, f"files[{name!r}]={quoted(text)}: must be text in base64") from None


async def answer_error(request: Request, error: Exception) -> Response:
    """The answer to a request that fits no route, or not its model."""
    if isinstance(error, HTTPException) and error.status_code == 404:
        error = HTTPException(404, f"there is no {request.url.path[:80]} here; GET /openapi.json lists what is")
    return error_response(error)
