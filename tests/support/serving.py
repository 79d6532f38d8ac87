"""A server in the test's loop, and the plain requests that tests send it."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from async_tests import Test
from places import ROOT
from pooling import family, pool_of, until, within

from sandbox import Pool
from sandbox.kernel import cgroup
from sandbox.serve.bounds import Bounds
from sandbox.serve.listening import Server, bind
from sandbox.serve.service import Service
from sandbox.serve.serving import make_app


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
        """The JSON lines of a stream that has its end."""
        assert self.body.endswith(b"\r\n0\r\n\r\n"), self.body[-80:]
        return [json.loads(line) for line in self.body.splitlines() if line.startswith(b"{")]

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
    return Answered(int(first.split()[1]), headers, rest)


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
    async with pool_of(workers, **options) as pool, _listening(Service(pool, bounds or Bounds(), token)) as served:
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


class ServeCommand:
    """`sandbox serve` in a process of its own, with the files that it makes in `folder`."""

    def __init__(self, folder: Path, *arguments: str, port: int = 0) -> None:
        environment = os.environ | {"TMPDIR": str(folder), "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sandbox", "serve", "--port", str(port), *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        self.folder = folder
        self.port = 0
        self.error = ""

    def __enter__(self) -> ServeCommand:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("sandbox: serving on http://"), line + self.ended()[1]
        self.port = int(line.split(" (")[0].rpartition(":")[2])
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGHUP)  # what runs is cut
        self.ended()

    def ended(self) -> tuple[int, str]:
        """Its exit code, and what it said to stderr."""
        if not self.error:
            self.error = self.process.communicate(timeout=60)[1]
        return self.process.returncode, self.error

    def ask(self, path: str, body: Any = None) -> Answered:
        """One request, as text and answer of this moment."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body))
            reply = connection.getresponse()
            return Answered(reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read())
        finally:
            connection.close()

    def family(self) -> list[psutil.Process]:
        """All its processes."""
        return [psutil.Process(self.process.pid), *family(self.process.pid)]

    def groups(self) -> set[str]:
        """Control groups of its processes."""
        owners = {f"ovl-{process.pid:x}-" for process in self.family()}
        return {name for name in cgroup.other_names() if any(name.startswith(owner) for owner in owners)}
