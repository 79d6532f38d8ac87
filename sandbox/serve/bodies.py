"""Request bodies: read within bounds, parsed, and their fields named where they are wrong. No pool, no routes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.types import Receive, Scope

from sandbox.core.checks import quoted
from sandbox.serve.bounds import PYTHON_BYTES, Bounds
from sandbox.serve.parsed_texts import count_values
from sandbox.serve.service import Place

VALUES: Final = 1_000_000
"""Of one body: more are parsed so slowly that every other client waits."""
_DISCARDED: Final = 2
"""A body of up to so many times the limit is read, and forgotten."""
Json = dict[str, Any]


class Refused(Exception):
    """A request that cannot be answered as it stands: ``status`` is 4xx, the message names field, value, way out."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class ClientGone(Exception):
    """The client has closed its connection: nobody reads an answer."""


async def receive_body(scope: Scope, receive: Receive, place: Place, bounds: Bounds) -> bytes:
    """The body of a request. Raises Refused (too long, too slow), Busy, ClientGone."""
    most = bounds.body_bytes
    declared = _declared(scope)
    if declared > _DISCARDED * most:
        raise Refused(413, f"the body has {declared} bytes; at most {most} are read (--body-limit)")
    parts = []
    length = 0
    try:
        async with asyncio.timeout(bounds.body_s):
            more = True
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                part = message.get("body", b"")
                length += len(part)
                if max(length, declared) <= most:
                    place.add(len(part))
                    parts.append(part)
                elif length > _DISCARDED * most:
                    break
                more = message.get("more_body", False)
    except TimeoutError:
        raise Refused(408, f"the body did not come within {bounds.body_s:g} s") from None
    if length > most:  # it was read, or its sender would see a broken connection and not this
        raise Refused(413, f"the body has more than {most} bytes (--body-limit)")
    return b"".join(parts)


def _declared(scope: Scope) -> int:
    """Bytes that the head announces; 0 where it says nothing."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and len(value) < 20:
            return int(value)
    return 0


async def read_json(request: Request) -> Json:
    """The JSON object that is the body of a request. Raises Refused."""
    return parse_json(await request.body())


def parse_json(body: bytes) -> Json:
    """A JSON object. Raises Refused for anything else, and for one that would hold up everybody else."""
    if (values := count_values(body, VALUES)) > VALUES:
        raise Refused(413, f"the body has {values} JSON values; at most {VALUES} are read")
    try:
        found = json.loads(body)
    except RecursionError:
        raise Refused(400, "the body is nested too deep") from None
    except ValueError as error:
        raise Refused(400, f"the body is no JSON: {str(error)[:200]}") from None
    if not isinstance(found, dict):
        raise Refused(400, f"the body must be a JSON object, not {type(found).__name__}")
    return found


def check_python(where: str, text: str) -> None:
    """Raise Refused for a text that takes too long to be parsed as Python."""
    if len(text) > PYTHON_BYTES:
        raise Refused(413, f"{where}: {len(text)} characters of Python; at most {PYTHON_BYTES} are parsed")


def check_fields(body: Mapping[str, Any], known: Collection[str], required: Collection[str] = ()) -> None:
    """Raises Refused for a field that is unknown or missing."""
    if unknown := sorted(set(body) - set(known)):
        raise Refused(422, f"unknown field {quoted(unknown[0])}; known fields: {', '.join(sorted(known))}")
    if missing := sorted(set(required) - set(body)):
        raise Refused(422, f"field {missing[0]!r} is missing")
