"""Guards the routes: who may ask, what is in hand, bodies within bounds, errors as answers.

    origin ──▶ token ──▶ place ──▶ body ──▶ route, until the client leaves ──▶ counted

waits for: the body, the route, the client's end; each with a deadline or the connection as its closer
A route finds the whole body in the request, and raises what it cannot answer. When the client leaves, it is cancelled.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import ipaddress
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sandbox.core.checks import quoted
from sandbox.serve.answers import Busy, ClientGone, Draining, Refused, error_response
from sandbox.serve.bounds import Bounds, count_values
from sandbox.serve.service import Service

VALUES: Final = 1_000_000
"""Values in one body: more are parsed so slowly that every other client waits."""
_DISCARDED: Final = 2
"""A body of up to this many times the limit is read, and discarded."""
_PART_BYTES: Final = 256 << 10
_OWN_NAME: Final = socket.gethostname().lower()
_LOCAL: Final = (".localhost", ".local", ".internal", ".svc", ".home.arpa")
"""Ends of names that the world's name servers have none of: Kubernetes', Docker's and clouds' own, a home's."""


class Guard:
    """A middleware around the routes."""

    def __init__(self, app: ASGIApp, service: Service, full: Mapping[str, int]) -> None:
        """``full``: the status, by path, for Busy where its clients know 503 not."""
        self.app, self.service, self.full = app, service, full

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = _Answer(send, self.service.bounds.send_s)
        start = time.monotonic()
        try:
            await self._answer(scope, receive, answer)
        except (Exception, asyncio.CancelledError) as error:
            await self._fail(error, scope, receive, answer)
        if answer.status:
            route = scope["route"].path if "route" in scope else "other"
            self.service.metrics.answers.labels(route, answer.status).inc()
            self.service.metrics.seconds.observe(time.monotonic() - start)

    async def _fail(self, error: BaseException, scope: Scope, receive: Receive, answer: _Answer) -> None:
        """Send the error. Raises it where an answer has begun: its end is missing then, which clients see; and a
        cancellation: the server ends before the route.
        """
        if isinstance(error, ClientGone):
            self.service.metrics.left.inc()
            return
        if answer.status:
            raise error
        said = error if isinstance(error, Exception) else Draining("the server ended before the answer")
        status = self.full.get(scope["path"]) if isinstance(said, Busy) else None
        with suppress(ClientGone):
            await error_response(said, status)(scope, receive, answer)
        if said is not error:
            raise error

    async def _answer(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        headers = MutableHeaders(scope=scope)
        bodiless = scope["method"] in ("GET", "HEAD")
        _check_source(headers, known=bool(self.service.token))
        is_open = not self.service.token or (bodiless and scope["path"] == "/health")  # which shows nothing of programs
        if not is_open and not _knows(headers, self.service.token):
            raise Refused(401, "the server's token is missing or wrong: send Authorization: Bearer TOKEN")
        if bodiless:
            await self.app(scope, receive, answer)
            return
        headers["content-type"] = "application/json"  # as curl does not say
        with self.service.admitted() as add:
            body = await _receive_body(headers, receive, add, self.service.bounds)
            await _until_gone(self.app, scope, body, receive, answer)


class _Answer:
    """Sends an answer, and knows its status. Raises ClientGone for a client that reads too slowly."""

    def __init__(self, send: Send, seconds: float) -> None:
        self._send, self._seconds = send, seconds
        self.status = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        try:
            async with asyncio.timeout(self._seconds):
                for part in _parts(message):
                    await self._send(part)
        except TimeoutError:
            raise ClientGone from None


def _parts(message: Message) -> Iterator[Message]:
    """A long body in parts: sending the next one waits until the client has read what came before."""
    body = message.get("body", b"")
    if len(body) <= _PART_BYTES:
        yield message
        return
    for start in range(0, len(body), _PART_BYTES):
        end = start + _PART_BYTES
        more = end < len(body) or message.get("more_body", False)
        yield {**message, "body": body[start:end], "more_body": more}


async def _receive_body(headers: Headers, receive: Receive, add: Callable[[int], None], bounds: Bounds) -> bytes:
    """The body of a request. Raises Refused (too long, too slow), Busy, ClientGone."""
    most, given = bounds.body_bytes, headers.get("content-length", "")
    declared = int(given) if given.isdigit() and len(given) < 20 else 0
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
                    add(len(part))
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


async def _until_gone(app: ASGIApp, scope: Scope, body: bytes, receive: Receive, answer: _Answer) -> None:
    """Run the route with the body that was read. When the client leaves it is cancelled, and ClientGone raised."""
    unread = [{"type": "http.request", "body": body, "more_body": False}]
    del body
    leaving = asyncio.ensure_future(receive())

    async def replay() -> Message:
        return unread.pop() if unread else await asyncio.shield(leaving)

    work = asyncio.ensure_future(app(scope, replay, answer))
    try:
        await asyncio.wait((work, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ClientGone
        work.result()
    finally:
        for task in (work, leaving):
            task.cancel()
        await asyncio.gather(work, leaving, return_exceptions=True)


def _check_source(headers: Headers, *, known: bool) -> None:
    """Raise Refused for a request that a web page of another site sent from a browser: by its Origin, or, where no
    token is asked for, by a Host that another owner's name server may point here (DNS rebinding). Addresses, names
    without a dot, this machine's own and those of a private network belong to no other site.
    """
    host, origin = (headers.get(name, "").lower() for name in ("host", "origin"))
    if origin and origin.partition("://")[2] != host:
        raise Refused(403, f"origin={quoted(origin)}: pages of other sites may not ask this server")
    try:
        name = urlsplit(f"//{host}").hostname or ""
        if not known and "." in name and name != _OWN_NAME and not name.removesuffix(".").endswith(_LOCAL):
            ipaddress.ip_address(name)
    except ValueError:
        way_out = "may be pointed here by anybody: ask by address or by a name without dots, or start it with --token"
        raise Refused(403, f"host={quoted(host)}: without a token a name {way_out}") from None


def _knows(headers: Headers, token: str) -> bool:
    """Return whether the request has the token: as Bearer, or as the URL's password where a client has only that."""
    kind, _, key = headers.get("authorization", "").encode("latin-1").strip().partition(b" ")
    if kind.lower() == b"basic":
        with suppress(ValueError):
            key = base64.b64decode(key, validate=True).partition(b":")[2]
    elif kind.lower() != b"bearer":
        return False
    return hmac.compare_digest(key.strip(), token.encode())
