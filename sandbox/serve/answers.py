"""What an error becomes for a client: one JSON object, and a status that says who is at fault.

{"error": {"type": "InvalidProblem", "message": "problem 'sum': cases=() can tell nothing; ..."}}
"""

from __future__ import annotations

import json
import traceback
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.responses import Response

from sandbox.core.checks import printable
from sandbox.errors import CheckerError, InvalidProblem, InvalidProgram, PoolClosed, SandboxError, ToolchainMissing
from sandbox.serve.bodies import Refused
from sandbox.serve.bounds import RETRY_S
from sandbox.serve.service import Busy

_STATUS: Final[tuple[tuple[type[SandboxError], int], ...]] = (
    (InvalidProblem, 422),
    (InvalidProgram, 422),
    (CheckerError, 422),  # the problem's author is at fault, and asking again does not help
    (ToolchainMissing, 501),
    (PoolClosed, 503),
    (SandboxError, 504),
)
"""504 is what clients of other frameworks ask again for."""


class AsciiJson(Response):
    """JSON in ASCII: what a program printed may hold bytes that are no UTF-8, as lone surrogates."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return json.dumps(content, separators=(",", ":")).encode()


def error_body(error: Exception) -> tuple[int, dict[str, Any]]:
    """Status and body for an error. One that nobody foresaw is our fault: it goes to stderr, and is a 504 too."""
    kind = type(error).__name__
    match error:
        case Busy():
            status = 503
        case Refused() | HTTPException():
            status = error.status if isinstance(error, Refused) else error.status_code
            kind = "Refused"
        case SandboxError():
            status = next(status for known, status in _STATUS if isinstance(error, known))
        case _:
            traceback.print_exception(error)
            status, kind = 504, "SandboxError"
    said = str(error)
    if isinstance(error, HTTPException):
        said = error.detail + (f"; use {error.headers['Allow']}" if error.headers else "")
    return status, {"error": {"type": kind, "message": printable(said or kind)}}


def error_response(error: Exception, status: int | None = None) -> Response:
    """The answer that tells an error; ``status`` instead of the usual one."""
    usual, body = error_body(error)
    headers = {}
    if isinstance(error, Busy | PoolClosed):
        headers["retry-after"] = str(getattr(error, "retry_s", RETRY_S))
    if usual in (408, 413):
        headers["connection"] = "close"  # the rest of the body is not read
    if usual == 401:
        headers["www-authenticate"] = "Bearer"
    return AsciiJson(body, status or usual, headers)
