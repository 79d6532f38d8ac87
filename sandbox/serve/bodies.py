"""Request bodies: read within bounds."""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.types import Receive, Scope

from sandbox.serve.answers import ClientGone, Refused
from sandbox.serve.bounds import Bounds
from sandbox.serve.parsed_texts import count_values
from sandbox.serve.service import Place

VALUES: Final = 1_000_000
"""Values in one body: more are parsed so slowly that every other client waits."""
_DISCARDED: Final = 2
"""A body of up to this many times the limit is read, and discarded."""


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
    body = b"".join(parts)
    if (values := count_values(body, VALUES)) > VALUES:
        raise Refused(413, f"the body has {values} JSON values; at most {VALUES} are read")
    return body


def _declared(scope: Scope) -> int:
    """Bytes that the head announces; 0 where it has no length."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and len(value) < 20:
            return int(value)
    return 0
