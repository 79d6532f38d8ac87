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
from collections.abc import AsyncIterator, Iterator, Mapping

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from overlap.core.aio import race
from overlap.core.errors import EpisodeError
from overlap.server import http_messages
from overlap.server.chat import Chat
from overlap.server.gateway_answers import (
    EarlyResponse,
    HeldResponse,
    as_body,
    as_events,
    disconnected,
    ended_by,
    failed,
    refused,
    unauthorized,
)
from overlap.server.gateway_session import GatewaySession
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
LONG_BYTES = 256 << 10
"""Bytes of a body above which each episode reads only one at a time."""
IN_FLIGHT_MAX = 256
"""Requests of one episode that may wait for their answers."""
RETRY_S = 1
"""Seconds after which a client that has too many requests may ask again."""
Answer = Response | HeldResponse | EarlyResponse


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
        unknown = dict.fromkeys((404, 405), self._not_found)
        self._app = Starlette(routes=routes, exception_handlers={**unknown, Exception: self._broke})
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
        return JSONResponse(http_messages.models()) if self._session_of(request) is not None else unauthorized()

    async def _model(self, request: Request) -> Response:
        if self._session_of(request) is None:
            return unauthorized()
        return JSONResponse(http_messages.model_of(request.path_params["name"]))

    async def _not_found(self, request: Request, error: Exception) -> Response:
        asked = f"{request.method[:20]} {request.url.path[:80]}"
        instead = OTHER_ROUTES.get(request.url.path)
        why = f"there is no {asked}, only POST {ROUTE} and GET /v1/models" + (f": {instead}" if instead else "")
        session = self._session_of(request)
        if session is not None:
            session.chat.refuse("route", why)
        return failed(404, why, "not_found_error", x_should_retry="false")

    async def _complete(self, request: Request) -> Answer:
        session = self._session_of(request)
        if session is None:
            return unauthorized()
        if session.inside >= IN_FLIGHT_MAX or len(session.asking) >= IN_FLIGHT_MAX:
            why, wait = f"{IN_FLIGHT_MAX} requests of this episode are in flight", {"retry_after": str(RETRY_S)}
            session.chat.refuse("requests", why)
            return EarlyResponse(session, failed(429, why, "rate_limit_error", **wait))
        with contextlib.ExitStack() as held:
            held.enter_context(session.being_answered())
            return HeldResponse(await self._served(request, session, held), held.pop_all())

    async def _served(
        self, request: Request, session: GatewaySession, held: contextlib.ExitStack
    ) -> Response | EarlyResponse:
        chat = session.chat
        try:
            if "content-length" in request.headers and _length(request) <= BODY_BYTES:
                chat.check_bytes(_length(request))
        except EpisodeError as error:
            return EarlyResponse(session, refused(session, error))
        try:
            async with session.long if _length(request) > LONG_BYTES else contextlib.nullcontext(), session.reading:
                body = await _body(request)
                if body is None:
                    why = f"the body is longer than {BODY_BYTES} bytes, or took longer than {BODY_S:g} s"
                    chat.refuse("body", why)
                    if _length(request) > BODY_BYTES:
                        chat.fill()
                    return EarlyResponse(session, failed(413, why, connection="close"))
                if session.ended:  # while its body came
                    raise session.over
                asked = await chat.in_thread(len(body), http_messages.read_body, body, chat.rules)
        except ClientDisconnect:
            return Response(status_code=499)
        except EpisodeError as error:
            return refused(session, error)
        del body
        turn = session.turn(asked, request.headers.get("x-stainless-retry-count", "0") != "0")
        held.enter_context(session.awaiting(turn))
        if not asked.stream:
            return await as_body(request, session, turn)
        await race(turn.task, turn.planned.wait(), disconnected(request))
        if not turn.planned.is_set():  # a refusal has a status of its own
            return ended_by(session, turn) or Response(status_code=499)
        return StreamingResponse(as_events(session, turn, asked.usage), media_type="text/event-stream")

    async def _broke(self, request: Request, error: Exception) -> Response:
        self._note(error)
        return failed(500, "the gateway has a fault", "server_error", x_should_retry="false")

    def _session_of(self, request: Request) -> GatewaySession | None:
        kind, _, key = request.headers.get("authorization", "").partition(" ")
        return self._sessions.get(_digest(key.strip())) if kind.lower() == "bearer" else None


def _length(request: Request) -> int:
    """Bytes of the body, as far as they are declared; of one that declares nothing, as many as may be."""
    return int(request.headers.get("content-length") or BODY_BYTES)


async def _body(request: Request) -> bytes | None:
    """The request's body; None if it is too long or too slow. Raises ClientDisconnect."""
    if _length(request) > BODY_BYTES:
        return None
    found = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for part in request.stream():
                found += part
                if len(found) > BODY_BYTES:
                    return None
    except TimeoutError:
        return None
    return bytes(found)


def _digest(key: str) -> bytes:
    """Keys are looked up by their hash, so that the time of a lookup reveals nothing about a key."""
    return hashlib.sha256(key.encode(errors="replace")).digest()
