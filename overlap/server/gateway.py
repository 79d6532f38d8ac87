"""An OpenAI-compatible endpoint for agent programs: HTTP access to ``Chat``, on loopback, with one key per episode.

    request ──▶ key ──▶ body, bounded ──▶ a turn that is known already ──▶ the same answer again
                                      └─▶ Chat.plan ─▶ Chat.sample ──▶ answer, or events ──▶ delivered

consumes: requests of harnesses        produces: answers, turns
waits for: bodies, turns               woken by: the end of a turn, a client that leaves

There are routes for answers and for the name of the model, and nothing else: none opens or rewards an episode.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
import socket
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from overlap.core.aio import race
from overlap.core.errors import ContextFull, EpisodeError, EpisodeOver, OverlapError
from overlap.server import http_messages
from overlap.server.chat import Chat
from overlap.server.gateway_session import GatewaySession, as_events, disconnected
from overlap.server.turn_request import Reply, parameter_of
from sandbox.serve.listening import Server, bind

ROUTE = "/v1/chat/completions"
OTHER_ROUTES: Mapping[str, str] = {
    "/v1/responses": (
        'have the client use chat completions (openai-agents: set_default_openai_api("chat_completions"); pydantic-ai: '
        "OpenAIChatModel; inspect-ai: the model argument responses_api=False; npm ai: openai.chat)"
    ),
    "/v1/completions": "send the prompt as messages, in which the policy's chat template marks the turns",
}
"""Routes that clients of OpenAI know and that are not served → what to do instead."""
BODY_BYTES, BODY_S = 16 << 20, 30.0
DROPPED_BYTES = 64 << 20
"""Bytes of a refused body that are still read: its client would not read the answer before it has sent all."""
LONG_BYTES = 256 << 10
"""Bytes of a body above which each episode reads only one at a time."""
IN_FLIGHT_MAX = 256
"""Requests of one episode that may wait for their answers."""
RETRY_S = 1
"""Seconds after which a client that has too many requests may ask again."""


class _Held:
    """A response, and the contexts that stay open until it was sent or its client has left."""

    def __init__(self, answer: Response, held: contextlib.ExitStack) -> None:
        self._answer, self._held = answer, held

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        with self._held:
            await self._answer(scope, receive, send)


class _Delivered(JSONResponse):
    """An answer that is delivered once it was sent to a client that is still connected."""

    def __init__(self, request: Request, session: GatewaySession, reply: Reply) -> None:
        super().__init__(http_messages.chat_answer(reply, int(time.time())))
        self._request, self._session, self._reply = request, session, reply

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        gone = await self._request.is_disconnected()
        await super().__call__(scope, receive, send)
        if not gone:
            self._session.chat.deliver(self._reply)


class Gateway:
    """Listens, as an async context, on a free port of 127.0.0.1. Belongs to one event loop."""

    def __init__(self) -> None:
        self._sessions: dict[bytes, GatewaySession] = {}
        self._socket: socket.socket | None = None
        self._listening = contextlib.AsyncExitStack()
        routes = [
            Route(ROUTE, self._complete, methods=["POST"]),
            Route("/v1/models", self._models, methods=["GET"]),
            Route("/v1/models/{name:path}", self._model, methods=["GET"]),
        ]
        handlers = {404: self._not_found, 405: self._not_found, Exception: self._broke}
        handlers |= {EpisodeError: self._refused, OverlapError: self._lost, ClientDisconnect: self._left}
        self._app = Starlette(routes=routes, exception_handlers=handlers)
        self._app.router.redirect_slashes = False
        self._server = Server(self._app)
        self.fault: Exception | None = None
        """The first error of the gateway itself: no episode that used it can be trusted after that."""

    @property
    def url(self) -> str:
        """Base URL for clients."""
        assert self._socket is not None, "it listens inside its context"
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}/v1"

    async def __aenter__(self) -> Gateway:
        self._socket = bind("127.0.0.1", 0)
        await self._listening.enter_async_context(self._server.listening(self._socket))
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._listening.aclose()

    @contextlib.asynccontextmanager
    async def serve(self, listener: socket.socket) -> AsyncIterator[str]:
        """Answer also on a bound socket, such as that of a jail, by a server of its own. Yields its base URL; when this
        ends, the socket and its connections are closed.
        """
        host, port = listener.getsockname()
        async with Server(self._app).listening(listener):
            yield f"http://{host}:{port}/v1"

    @contextlib.contextmanager
    def session(self, chat: Chat) -> Iterator[str]:
        """Yields a key to an episode's chat. When this ends, the key is invalid and no turn of the episode is in
        flight.
        """
        key = f"ovl-{secrets.token_urlsafe(32)}"
        session = self._sessions[_digest(key)] = GatewaySession(chat, self._note)
        try:
            yield key
        finally:
            del self._sessions[_digest(key)]
            session.end()

    @contextlib.contextmanager
    def endpoint(self, chat: Chat) -> Iterator[tuple[str, str]]:
        """As ``session``, with the base URL; raises the gateway's own fault at the end."""
        with self.session(chat) as key:
            yield self.url, key
        if self.fault is not None:
            raise self.fault

    def _note(self, fault: Exception) -> None:
        self.fault = self.fault or fault

    async def _models(self, request: Request) -> Response:
        if self._session_of(request) is None:
            return _unauthorized()
        return JSONResponse({"object": "list", "data": [http_messages.model_of(http_messages.MODEL)]})

    async def _model(self, request: Request) -> Response:
        if self._session_of(request) is None:
            return _unauthorized()
        return JSONResponse(http_messages.model_of(request.path_params["name"]))

    async def _not_found(self, request: Request, error: Exception) -> Response:
        asked = f"{request.method[:20]} {request.url.path[:80]}"
        instead = OTHER_ROUTES.get(request.url.path)
        why = f"there is no {asked}, only POST {ROUTE} and GET /v1/models" + (f": {instead}" if instead else "")
        session = self._session_of(request)
        if session is not None:
            session.chat.refuse("route", why)
        return _failed(404, why, "not_found_error", x_should_retry="false")

    async def _complete(self, request: Request) -> Response | _Held:
        session = request.state.session = self._session_of(request)
        if session is None:
            return _unauthorized()
        if session.inside >= IN_FLIGHT_MAX or len(session.asking) >= IN_FLIGHT_MAX:
            why, wait = f"{IN_FLIGHT_MAX} requests of this episode are in flight", {"retry_after": str(RETRY_S)}
            session.chat.refuse("requests", why)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BODY_S), _turn_of(request, session):
                    await _body(request, 0)
            return _failed(429, why, "rate_limit_error", **wait)
        with contextlib.ExitStack() as held:
            held.enter_context(session.being_answered())
            return _Held(await self._served(request, session, held), held.pop_all())

    async def _served(self, request: Request, session: GatewaySession, held: contextlib.ExitStack) -> Response:
        chat = session.chat
        async with _turn_of(request, session), session.reading:
            body = await _body(request, BODY_BYTES)
            if body is None:
                why = f"the body is longer than {BODY_BYTES} bytes, or took longer than {BODY_S:g} s"
                chat.refuse("body", why)
                if _length(request) > BODY_BYTES:
                    chat.fill()
                return _failed(413, why, connection="close")
            if session.ended:  # while its body came
                raise session.over
            asked = await chat.in_thread(len(body), http_messages.read_body, body, chat.rules)
        del body
        turn = session.turn(asked, request.headers.get("x-stainless-retry-count", "0") != "0")
        held.enter_context(session.awaiting(turn))
        if asked.stream:
            await race(turn.task, turn.planned.wait(), disconnected(request))
            if turn.planned.is_set():  # until then, a refusal has a status of its own
                return StreamingResponse(as_events(session, turn, asked.usage), media_type="text/event-stream")
        else:
            await race(turn.task, disconnected(request))
        if not turn.task.done():
            raise ClientDisconnect
        return _Delivered(request, session, session.reply_of(turn))

    async def _refused(self, request: Request, error: Exception) -> Response:
        """The answer to a refused request, which is counted."""
        chat = request.state.session.chat
        if isinstance(error, EpisodeOver):  # a code on which no client asks again
            return _failed(404, f"the episode is over: {error}", "not_found_error", x_should_retry="false")
        assert isinstance(error, EpisodeError)
        chat.refuse(parameter_of(error), str(error))
        param, code = str(error).partition(":")[0], None
        if isinstance(error, ContextFull):
            param, code = "messages", "context_length_exceeded"
            chat.fill()
        named = None if " " in param else param
        return JSONResponse(http_messages.failure(str(error), "invalid_request_error", named, code), 400)

    async def _lost(self, request: Request, error: Exception) -> Response:
        """The engine is gone for good, and the run with it."""
        return _failed(503, str(error), "server_error", x_should_retry="false")

    async def _left(self, request: Request, error: Exception) -> Response:
        return Response(status_code=499)

    async def _broke(self, request: Request, error: Exception) -> Response:
        self._note(error)
        return _failed(500, "the gateway has a fault", "server_error", x_should_retry="false")

    def _session_of(self, request: Request) -> GatewaySession | None:
        kind, _, key = request.headers.get("authorization", "").partition(" ")
        return self._sessions.get(_digest(key.strip())) if kind.lower() == "bearer" else None


def _failed(status: int, message: str, kind: str = "invalid_request_error", **headers: str) -> Response:
    """An error, with its headers."""
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return JSONResponse(http_messages.failure(message, kind), status, headers=names)


def _unauthorized() -> Response:
    return _failed(401, "no episode has this key", "authentication_error", x_should_retry="false", connection="close")


def _length(request: Request) -> int:
    """Declared length of the body, bytes; ``BODY_BYTES`` where none is declared."""
    return int(request.headers.get("content-length") or BODY_BYTES)


def _turn_of(request: Request, session: GatewaySession) -> contextlib.AbstractAsyncContextManager[None]:
    """Context for reading or dropping a body: an episode reads one long body at a time, so others go on."""
    return session.long if _length(request) > LONG_BYTES else contextlib.nullcontext()


async def _body(request: Request, most: int) -> bytes | None:
    """The request's body; None if it has more than ``most`` bytes or is too slow. The rest of a body that is too long
    is read and dropped: a client that is still sending when the connection closes loses the answer. Raises
    ClientDisconnect.
    """
    found, length = bytearray(), 0
    if _length(request) > DROPPED_BYTES:
        return None
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(BODY_S):
            async for part in request.stream():
                length += len(part)
                if length > DROPPED_BYTES:
                    return None
                found += part if length <= most else b""
            return bytes(found) if length <= most else None
    return None


def _digest(key: str) -> bytes:
    """Keys are looked up by their hash, so that the time of a lookup reveals nothing about a key."""
    return hashlib.sha256(key.encode(errors="replace")).digest()
