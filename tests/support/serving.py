"""A server in the test's loop, and the plain requests that tests send it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from async_tests import Test
from pooling import pool_of, until, within

from sandbox import Pool
from sandbox.serve import Bounds, Server, Service, bind, make_app


@dataclass
class Answered:
    """An answer, whole."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.body.splitlines()]

    @property
    def error(self) -> str:
        """The message of a refusal."""
        return str(self.json["error"]["message"])


@dataclass
class Served:
    """A server that listens, and what is behind it."""

    service: Service
    server: Server
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def ask(self, path: str, body: Any = None, *, method: str = "", **headers: str) -> Answered:
        """One request on a connection of its own: a body that is no bytes is sent as JSON."""
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        method = method or ("GET" if body is None else "POST")
        lines = [f"{method} {path} HTTP/1.1", "host: test", "connection: close", f"content-length: {len(data)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return answered(await self.send("\r\n".join(lines).encode() + b"\r\n\r\n" + data))

    async def send(self, data: bytes) -> bytes:
        """Everything that the server says to these bytes until it closes the connection."""
        reader, writer = await self.connect()
        try:
            writer.write(data)
            return await reader.read()
        except ConnectionError:
            return b""
        finally:
            writer.close()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)


def answered(said: bytes) -> Answered:
    """What a server said, read."""
    head, _, rest = said.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = _unchunked(rest) if headers.get("transfer-encoding") == "chunked" else rest
    return Answered(int(first.split()[1]), headers, body)


def _unchunked(data: bytes) -> bytes:
    found = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        length = int(size, 16)
        if not length:
            return found
        found, data = found + data[:length], data[length + 2 :]
    raise AssertionError("the stream has no end")


@asynccontextmanager
async def serving_nothing(bounds: Bounds | None = None) -> AsyncIterator[Served]:
    """A server that need not judge: its pool would start with the first program."""
    async with _listening(Service(Pool(1), bounds or Bounds())) as served:
        yield served
        assert not served.service.pool.pids()


@asynccontextmanager
async def serving(
    workers: int = 1, *, token: str = "", bounds: Bounds | None = None, **options: Any
) -> AsyncIterator[Served]:
    """A server over a pool that must leave nothing."""
    async with pool_of(workers, **options) as pool:
        async with _listening(Service(pool, bounds or Bounds(), token)) as served:
            yield served
            await until(lambda: served.service.in_hand == served.service.held_bytes == 0)
            if "sessions" in served.service.__dict__:
                await served.service.sessions.close()


@asynccontextmanager
async def _listening(service: Service) -> AsyncIterator[Served]:
    listener = bind("127.0.0.1", 0)
    port = listener.getsockname()[1]
    server = Server(make_app(service))
    async with server.listening(listener):
        yield Served(service, server, port)


def served(workers: int = 1, **options: Any) -> Callable[[Test], Callable[..., None]]:
    """A test whose first argument is a server."""
    return within(partial(serving, workers, **options))


def answering(bounds: Bounds | None = None) -> Callable[[Test], Callable[..., None]]:
    """A test whose first argument is a server that judges nothing."""
    return within(partial(serving_nothing, bounds))
