"""One server as a client sees it: its connections, what it has in hand, and whether it answers.

waits for answers; woken by them, or by the watch, which closes the connections to a server that is silent for too long
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from sandbox.core.problem import Problem
from sandbox.errors import SandboxError

if TYPE_CHECKING:
    from aiohttp import ClientSession

KEPT_S: Final = 50.0
"""A connection that idled for longer is not used again: servers close theirs after a while (ours after 75 s)."""
CONNECT_S: Final = 10.0
WATCH_S: Final = 5.0
SILENT_MAX: Final = 3
"""Questions for its health, of WATCH_S each, that a server may leave without an answer while it has jobs."""
_NAMES: Final = 1024


class Unreachable(Exception):
    """A server cannot be asked, or broke off."""


@dataclass(frozen=True, slots=True)
class HttpReply:
    """An answer, whole; names of headers may be asked for in any case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Machine:
    """See the module. Belongs to one event loop. Raises ValueError for a URL that is none."""

    def __init__(self, url: str, token: str = "") -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"url={url!r}: must be like http://HOST:PORT")
        port = parts.port or (443 if parts.scheme == "https" else 80)
        self.name = f"{parts.hostname}:{port}"
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        self._url = f"{parts.scheme}://{host}:{port}{parts.path.rstrip('/')}"
        token = token or unquote(parts.password or "")
        self._headers = {"authorization": f"Bearer {token}"} if token else {}
        self._session: ClientSession | None = None
        self._watching: asyncio.Task[None] | None = None
        self.in_hand = 0
        self.workers = 1
        """Programs that it judges at the same time, as far as known."""
        self.body_bytes = sys.maxsize
        """Size of the longest request that the server reads."""
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

    def rest(self, seconds: float) -> None:
        """Leave it alone for a while."""
        self.not_before = asyncio.get_running_loop().time() + seconds

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
        finally:
            self.in_hand -= 1

    async def _exchange(self, method: str, path: str, body: bytes | None = None) -> HttpReply:
        """Raises Unreachable."""
        import aiohttp  # of the extra `client`

        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEPT_S),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
                headers=self._headers,
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        try:
            asked = self._session.request(method, self._url + path, data=body, allow_redirects=False)
            async with asked as answer:
                return HttpReply(answer.status, answer.headers, await answer.read())
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(str(error) or type(error).__name__) from error

    async def _learn(self) -> None:
        reply = await self._exchange("GET", "/version")
        if reply.status == 200:
            try:
                found = json.loads(reply.body)
                self.workers, self.body_bytes = max(1, int(found["workers"])), int(found["bounds"]["body_bytes"])
            except (ValueError, KeyError, TypeError) as error:
                raise Unreachable(f"{self.name}/version is not that of a `sandbox serve`") from error
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
            except (Unreachable, TimeoutError):
                silent += 1
            if silent >= SILENT_MAX:
                await self.close_connections()
                silent = 0

    async def close_connections(self) -> None:
        """Close all, also those of a loop that is closed; requests that wait for answers raise Unreachable."""
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    async def close(self) -> None:
        """Close the connections, and end the watch."""
        if self._watching is not None:
            self._watching.cancel()
            with suppress(asyncio.CancelledError):
                await self._watching
        await self.close_connections()
