"""One server as a client sees it: its connections, what it has in hand, and whether it answers.

waits for answers; woken by them, or by the watch, which closes the connections to a server that is silent for too long
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import OrderedDict
from contextlib import suppress
from typing import Final
from urllib.parse import unquote, urlsplit

from sandbox.client.http_connection import HttpConnection, HttpReply
from sandbox.core.problem import Problem
from sandbox.errors import SandboxError

KEPT_S: Final = 50.0
"""A connection that idled for longer is not used again: servers close theirs after a while (ours after 75 s)."""
WATCH_S: Final = 5.0
SILENT_MAX: Final = 3
"""Questions for its health, of WATCH_S each, that a server may leave without an answer while it has jobs."""
_NAMES: Final = 1024
_FAILURES: Final = (OSError, EOFError, ValueError, KeyError, TypeError)


class Unreachable(Exception):
    """A server cannot be asked, or broke off."""


class Machine:
    """See the module. Belongs to one event loop. Raises ValueError for a URL that is none."""

    def __init__(self, url: str, token: str = "") -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"url={url!r}: must be like http://HOST:PORT")
        self.secure = parts.scheme == "https"
        self.host, self.port = parts.hostname, parts.port or (443 if self.secure else 80)
        self.name = f"{self.host}:{self.port}"
        self._prefix = parts.path.rstrip("/")
        token = token or unquote(parts.password or "")
        self._headers = {"authorization": f"Bearer {token}"} if token else {}
        self._idle: list[tuple[float, HttpConnection]] = []
        self._busy: set[HttpConnection] = set()
        self._watching: asyncio.Task[None] | None = None
        self.in_hand = 0
        self.workers = 1
        """Programs that it judges at the same time, as far as known."""
        self.body_bytes = sys.maxsize
        """Of the longest request that it reads."""
        self.known = False
        self._names: OrderedDict[int, tuple[Problem, str]] = OrderedDict()
        self.not_before = 0.0
        """Time of the loop from which it may be asked again."""

    def name_of(self, problem: Problem) -> str:
        """The name that the server gave a problem; "" where it must be sent whole."""
        return self._names.get(id(problem), (problem, ""))[1]

    def set_name(self, problem: Problem, name: str) -> None:
        """Remember that name; "" forgets it."""
        self._names.pop(id(problem), None)
        if name:
            self._names[id(problem)] = problem, name
        while len(self._names) > _NAMES:
            self._names.popitem(last=False)

    async def ask(self, path: str, body: bytes) -> HttpReply:
        """Have a request answered. Raises Unreachable, and SandboxError for one that is too long."""
        self.in_hand += 1
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch(), name=f"watch {self.name}")
        try:
            if not self.known:
                await self._learn()
            if len(body) > self.body_bytes:
                raise SandboxError(
                    f"{self.name}: the job has {len(body)} bytes, and at most {self.body_bytes} are read there; start "
                    "the server with a greater --body-limit"
                )
            return await self._exchange("POST", path, body)
        except _FAILURES as error:
            raise Unreachable(str(error) or type(error).__name__) from error
        finally:
            self.in_hand -= 1

    async def _exchange(self, method: str, path: str, body: bytes = b"") -> HttpReply:
        """A request on a connection that is there, and on a new one where the server has closed that."""
        while True:
            connection = self._kept() or await HttpConnection.open(self.host, self.port, self.secure)
            self._busy.add(connection)
            try:
                reply = await connection.ask(method, self._prefix + path, self._headers, body)
            except BaseException as error:
                again = connection.used and not connection.closed and isinstance(error, ConnectionError | EOFError)
                connection.close()
                if again:
                    continue
                raise
            finally:
                self._busy.discard(connection)
            if connection.keeps:
                self._idle.append((asyncio.get_running_loop().time(), connection))
            else:
                connection.close()
            return reply

    def _kept(self) -> HttpConnection | None:
        now = asyncio.get_running_loop().time()
        while self._idle:
            since, connection = self._idle.pop()
            if now - since < KEPT_S:
                return connection
            connection.close()
        return None

    async def _learn(self) -> None:
        reply = await self._exchange("GET", "/version")
        if reply.status == 200:
            found = json.loads(reply.body)
            self.workers, self.body_bytes = max(1, int(found["workers"])), int(found["bounds"]["body_bytes"])
            self.known = True

    async def _watch(self) -> None:
        """Ask for its health while it has jobs."""
        silent = 0
        while True:
            await asyncio.sleep(WATCH_S)
            if not self.in_hand:
                return
            try:
                async with asyncio.timeout(WATCH_S):
                    await self._exchange("GET", "/health")
                silent = 0
            except _FAILURES:
                silent += 1
            if silent >= SILENT_MAX:
                self.close_connections()
                silent = 0

    def close_connections(self) -> None:
        """Close all; requests that wait for answers raise Unreachable."""
        for connection in [*self._busy, *(connection for _, connection in self._idle)]:
            connection.close()
        self._idle.clear()

    async def close(self) -> None:
        """Close the connections, and end the watch."""
        if self._watching is not None:
            self._watching.cancel()
            with suppress(asyncio.CancelledError):
                await self._watching
        self.close_connections()
