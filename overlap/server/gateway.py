"""``/v1/chat/completions`` for agent programs: HTTP access to ``Chat``, on loopback, with one key per episode.

    request ──▶ key ──▶ body, bounded ──▶ a turn that is known already ──▶ the same answer again
                                      └─▶ Chat.ask ──▶ Chat.sample ──▶ answer, or events ──▶ delivered

consumes: requests of harnesses        produces: answers, turns
waits for: bodies, turns               woken by: the end of a turn, a client that leaves

There are two routes and nothing else: none opens or rewards an episode.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
import socket
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from overlap.aio import race
from overlap.errors import ContextFull, EpisodeError, EpisodeOver, OverlapError
from overlap.server import http_messages
from overlap.server.chat import Chat, Reply
from overlap.server.http_messages import ChatRequest
from overlap.server.listening import Server

MODEL = "policy"
BODY_BYTES, BODY_S = 16 << 20, 30.0
IN_FLIGHT_MAX = 32
"""Requests of one episode that may be in flight."""
KEEP_S = 3.0
"""Seconds between two keep-alive comments on a stream whose turn is not ready."""
CLOSE_S = 5.0


@dataclass(slots=True, eq=False)
class _Turn:
    """A turn that is sampled or sent, until the last of its requests has the answer or has left."""

    digest: str
    task: asyncio.Task[Reply]
    requests: int = 0

    @property
    def reply(self) -> Reply | None:
        """The answer; None before there is one, and after a failure."""
        failed = not self.task.done() or self.task.cancelled() or self.task.exception() is not None
        return None if failed else self.task.result()


@dataclass(slots=True, eq=False)
class _Session:
    """An episode at the gateway: its requests and their answers."""

    chat: Chat
    replies: dict[str, list[Reply]] = field(default_factory=dict)
    flying: list[_Turn] = field(default_factory=list)
    asking: set[asyncio.Task[Any]] = field(default_factory=set)
    inside: int = 0
    """Requests that are being read or answered."""
    replayed: int = 0
    ended: bool = False

    def known(self, asked: ChatRequest, again: bool) -> _Turn | Reply | None:
        """What this request repeats: an answer that never arrived and is not being sent; or, where the client declares
        a retry, one that arrived or is being sent.
        """
        made = self.replies.get(asked.digest, [])
        flying = [turn for turn in self.flying if turn.digest == asked.digest]
        sent = {turn.reply.turn.number for turn in flying if turn.reply is not None} | self.chat.episode.delivered
        lost = next((reply for reply in made if reply.turn.number not in sent), None)
        if lost is not None or not again:
            return lost
        return flying[-1] if flying else made[-1] if made else None

    def left(self) -> None:
        """One request has been answered."""
        self.inside -= 1

    @contextlib.contextmanager
    def awaiting(self, turn: _Turn) -> Iterator[None]:
        """Cancel the turn when no request waits for it any more."""
        turn.requests += 1
        try:
            yield
        finally:
            turn.requests -= 1
            if not turn.requests:
                self.flying.remove(turn)
                turn.task.cancel()


class Gateway:
    """Listens, as an async context, on a free port of 127.0.0.1. Belongs to one event loop."""

    def __init__(self) -> None:
        self._sessions: dict[bytes, _Session] = {}
        self._socket: socket.socket | None = None
        self._serving: asyncio.Task[None] | None = None
        routes = [
            Route("/v1/chat/completions", self._complete, methods=["POST"]),
            Route("/v1/models", self._models, methods=["GET"]),
        ]
        app = Starlette(routes=routes, exception_handlers={404: _not_found, 405: _not_found, Exception: self._broke})
        app.router.redirect_slashes = False
        self._server = Server(app)
        self.fault: Exception | None = None
        """The first error of the gateway itself: no episode that used it can be trusted after that."""

    @property
    def url(self) -> str:
        """Base URL for clients."""
        assert self._socket is not None, "it listens inside its context"
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}/v1"

    async def __aenter__(self) -> Gateway:
        made = socket.socket()
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.bind(("127.0.0.1", 0))
        self._socket = made
        self._serving = asyncio.create_task(self._server.serve([made]), name="gateway")
        await race(self._serving, self._server.up.wait())
        if self._serving.done():
            self._serving.result()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._server.should_exit = True
        assert self._serving is not None
        assert self._socket is not None
        await asyncio.wait([self._serving], timeout=CLOSE_S)
        self._serving.cancel()
        await asyncio.gather(self._serving, return_exceptions=True)
        self._socket.close()

    @contextlib.contextmanager
    def session(self, chat: Chat) -> Iterator[str]:
        """Yields a key to an episode's chat. When this ends, the key is invalid and no turn of the episode is in
        flight.
        """
        key = f"ovl-{secrets.token_urlsafe(32)}"
        session = self._sessions[_digest(key)] = _Session(chat)
        try:
            yield key
        finally:
            del self._sessions[_digest(key)]
            session.ended = True
            for task in session.asking:
                task.cancel()
            chat.replayed += session.replayed

    async def _models(self, request: Request) -> Response:
        return JSONResponse(http_messages.models(MODEL)) if self._session_of(request) is not None else _unauthorized()

    async def _complete(self, request: Request) -> Response | _Held:
        session = self._session_of(request)
        if session is None:
            return _unauthorized()
        if session.inside >= IN_FLIGHT_MAX or len(session.asking) >= IN_FLIGHT_MAX:
            return _error(429, f"{IN_FLIGHT_MAX} requests of this episode are in flight", "rate_limit_error")
        with contextlib.ExitStack() as held:
            session.inside += 1
            held.callback(session.left)
            return _Held(await self._served(request, session, held), held.pop_all())

    async def _served(self, request: Request, session: _Session, held: contextlib.ExitStack) -> Response:
        try:
            body = await _body(request)
        except ClientDisconnect:
            return Response(status_code=499)
        if body is None:
            what = f"the body is longer than {BODY_BYTES} bytes, or took longer than {BODY_S:g} s"
            return _error(413, what, connection="close")
        if session.ended:  # while its body came
            return _refusal(EpisodeOver(session.chat.over or "it has ended"))
        try:
            asked = http_messages.read_body(body)
            turn = self._turn(session, asked, request.headers.get("x-stainless-retry-count", "0") != "0")
        except EpisodeError as error:
            return _refusal(error)
        held.enter_context(session.awaiting(turn))
        if asked.stream:
            return StreamingResponse(_stream(session, turn.task, asked), media_type="text/event-stream")
        return await _answered(request, session, turn.task)

    def _turn(self, session: _Session, asked: ChatRequest, again: bool) -> _Turn:
        """The turn that answers this request, new or known. Raises EpisodeError where none may be sampled."""
        known = session.known(asked, again)
        if known is not None:
            session.replayed += 1
        if isinstance(known, _Turn):
            return known
        task = asyncio.create_task(asyncio.sleep(0, known)) if known is not None else self._sampled(session, asked)
        session.flying.append(turn := _Turn(asked.digest, task))
        return turn

    def _sampled(self, session: _Session, asked: ChatRequest) -> asyncio.Task[Reply]:
        plan = session.chat.ask(asked.messages, tools=asked.tools, max_tokens=asked.max_tokens, stop=asked.stop)

        async def sample() -> Reply:
            reply = await session.chat.sample(plan)
            session.replies.setdefault(asked.digest, []).append(reply)
            return reply

        def forget(done: asyncio.Task[Reply]) -> None:
            session.asking.discard(done)
            error = None if done.cancelled() else done.exception()  # seen, also where nobody waits any more
            if isinstance(error, Exception) and not isinstance(error, OverlapError):
                self.fault = self.fault or error

        task = asyncio.create_task(sample(), name="a turn of a harness")
        session.asking.add(task)
        task.add_done_callback(forget)
        return task

    async def _broke(self, request: Request, error: Exception) -> Response:
        self.fault = self.fault or error
        return _error(500, "the gateway has a fault", "server_error", x_should_retry="false")

    def _session_of(self, request: Request) -> _Session | None:
        kind, _, key = request.headers.get("authorization", "").partition(" ")
        return self._sessions.get(_digest(key.strip())) if kind.lower() == "bearer" else None


class _Held:
    """A response, and the contexts that stay open until it was sent or its client has left."""

    def __init__(self, answer: Response, held: contextlib.ExitStack) -> None:
        self._answer, self._held = answer, held

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        with self._held:
            await self._answer(scope, receive, send)


async def _answered(request: Request, session: _Session, turn: asyncio.Task[Reply]) -> Response:
    """The answer as one JSON body."""
    await race(turn, _disconnected(request))
    if not turn.done():
        return Response(status_code=499)
    if turn.cancelled():
        return _refusal(EpisodeOver(session.chat.over or "it has ended"))
    try:
        return _Delivered(request, session, turn.result())
    except EpisodeError as error:
        return _refusal(error)
    except OverlapError as error:  # the engine is gone for good, and the run with it
        return _error(503, str(error), "server_error", x_should_retry="false")


class _Delivered(JSONResponse):
    """An answer that is delivered once it was sent to a client that is still connected."""

    def __init__(self, request: Request, session: _Session, reply: Reply) -> None:
        super().__init__(http_messages.completion(reply, MODEL, int(time.time())))
        self._request, self._session, self._reply = request, session, reply

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        gone = await self._request.is_disconnected()
        await super().__call__(scope, receive, send)
        if not gone:
            self._session.chat.deliver(self._reply)


async def _stream(session: _Session, turn: asyncio.Task[Reply], asked: ChatRequest) -> AsyncIterator[bytes]:
    """The answer as server-sent events."""
    while not turn.done():
        await asyncio.wait([turn], timeout=KEEP_S)
        if not turn.done():
            yield b": the policy is at work\n\n"
    error = EpisodeOver(session.chat.over or "it has ended") if turn.cancelled() else turn.exception()
    if error is not None:
        text = str(error) if isinstance(error, OverlapError) else "the gateway has a fault"
        yield b"data: " + JSONResponse(http_messages.failure(text, "not_found_error")).body + b"\n\n"
        return
    *parts, last = http_messages.events(turn.result(), MODEL, int(time.time()), asked.usage)
    for part in parts:
        yield part
    session.chat.deliver(turn.result())  # before the end of the stream, behind which a client asks for more
    yield last


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _body(request: Request) -> bytes | None:
    """The request's body; None if it is too long or too slow. Raises ClientDisconnect."""
    if int(request.headers.get("content-length") or 0) > BODY_BYTES:
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


def _error(status: int, message: str, kind: str = "invalid_request_error", **headers: str) -> Response:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return JSONResponse(http_messages.failure(message, kind), status, headers=names)


def _unauthorized() -> Response:
    return _error(401, "no episode has this key", "authentication_error", x_should_retry="false", connection="close")


def _refusal(error: EpisodeError) -> Response:
    if isinstance(error, EpisodeOver):  # a code on which no client asks again
        return _error(404, f"the episode is over: {error}", "not_found_error", x_should_retry="false")
    param, code = str(error).partition(":")[0], None
    if isinstance(error, ContextFull):
        param, code = "messages", "context_length_exceeded"
    found = http_messages.failure(str(error), "invalid_request_error", None if " " in param else param, code)
    return JSONResponse(found, 400)


async def _not_found(request: Request, error: Exception) -> Response:
    return _error(404, "there are POST /v1/chat/completions and GET /v1/models", "not_found_error")
