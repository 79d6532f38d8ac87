"""Answers of the gateway: as one body, as a stream, and as an error in the words that clients know."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from overlap.core.aio import race
from overlap.core.errors import ContextFull, EpisodeError, EpisodeOver, OverlapError
from overlap.server.gateway_session import GatewaySession, GatewayTurn
from overlap.server.http_fields import failure
from overlap.server.http_messages import chat_answer, chat_events, failed_event
from overlap.server.reply import Reply
from overlap.server.turn_request import parameter_of

KEEP_S = 3.0
"""Seconds between two keep-alive comments on a stream whose turn is not ready."""
LINGER_S, LINGER_BYTES = 30.0, 64 << 20
"""Limits within which a body that is not wanted is read, so that its client reads the answer."""


class HeldResponse:
    """A response, and the contexts that stay open until it was sent or its client has left."""

    def __init__(self, answer: Response | EarlyResponse, held: contextlib.ExitStack) -> None:
        self._answer, self._held = answer, held

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        with self._held:
            await self._answer(scope, receive, send)


class EarlyResponse:
    """An answer to a request whose body was not read to its end. The rest is read and dropped, one body of a session
    at a time: a client that is still sending when the connection closes loses the answer, too.
    """

    def __init__(self, session: GatewaySession, answer: Response) -> None:
        self._session, self._answer = session, answer

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        answer = self._answer
        await send({"type": "http.response.start", "status": answer.status_code, "headers": answer.raw_headers})
        await send({"type": "http.response.body", "body": answer.body, "more_body": True})
        left = LINGER_BYTES
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S), self._session.long:
                while left > 0 and (part := await receive()).get("more_body"):
                    left -= len(part["body"])
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class _Delivered(JSONResponse):
    """An answer that is delivered once it was sent to a client that is still connected."""

    def __init__(self, request: Request, session: GatewaySession, reply: Reply) -> None:
        super().__init__(chat_answer(reply, int(time.time())))
        self._request, self._session, self._reply = request, session, reply

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        gone = await self._request.is_disconnected()
        await super().__call__(scope, receive, send)
        if not gone:
            self._session.chat.deliver(self._reply)


async def as_body(request: Request, session: GatewaySession, turn: GatewayTurn) -> Response:
    """The answer as one JSON body."""
    await race(turn.task, disconnected(request))
    error = ended_by(session, turn)
    if error is not None:
        return error
    return _Delivered(request, session, turn.task.result())


def ended_by(session: GatewaySession, turn: GatewayTurn) -> Response | None:
    """The answer to a request whose client has left, or whose turn has failed; None where the turn has ended well."""
    if not turn.task.done():
        return Response(status_code=499)
    error = session.error_of(turn)
    if error is None:
        return None
    if isinstance(error, EpisodeError):
        return refused(session, error)
    if isinstance(error, OverlapError):  # the engine is gone for good, and the run with it
        return failed(503, str(error), "server_error", x_should_retry="false")
    raise error


async def as_events(session: GatewaySession, turn: GatewayTurn, usage: bool) -> AsyncIterator[bytes]:
    """The answer as server-sent events."""
    task = turn.task
    while not task.done():
        await asyncio.wait([task], timeout=KEEP_S)
        if not task.done():
            yield b": the policy is at work\n\n"
    error = session.error_of(turn)
    if error is not None:
        yield failed_event(str(error) if isinstance(error, OverlapError) else "the gateway has a fault")
        return
    *parts, last = chat_events(task.result(), int(time.time()), usage)
    for part in parts:
        yield part
    session.chat.deliver(task.result())  # before the end of the stream, behind which a client asks for more
    yield last


async def disconnected(request: Request) -> None:
    """Returns when the client has left."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def failed(status: int, message: str, kind: str = "invalid_request_error", **headers: str) -> Response:
    """An error, with its headers."""
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return JSONResponse(failure(message, kind), status, headers=names)


def unauthorized() -> Response:
    return failed(401, "no episode has this key", "authentication_error", x_should_retry="false", connection="close")


def refused(session: GatewaySession, error: EpisodeError) -> Response:
    """The answer to a refused request, which is counted."""
    if isinstance(error, EpisodeOver):  # a code on which no client asks again
        return failed(404, f"the episode is over: {error}", "not_found_error", x_should_retry="false")
    name = parameter_of(error)
    session.chat.refuse(name, str(error))
    param, code = str(error).partition(":")[0], None
    if isinstance(error, ContextFull):
        param, code = "messages", "context_length_exceeded"
        session.chat.fill()
    found = failure(str(error), "invalid_request_error", None if " " in param else param, code)
    return JSONResponse(found, 400)
