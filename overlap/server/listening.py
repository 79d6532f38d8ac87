"""The gateway's HTTP/1.1 server: heads are bounded, and no client can use up the connections of the others.

waits for: connections, requests        woken by: the loop
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

CONNECTIONS = 4096
"""Limit on open connections; beyond it idle ones are closed, the oldest first."""
HEAD_BYTES = 64 << 10
ACCEPTED = 16
"""Connections that are accepted at a time: more at once would hold the loop up."""


class Connection(H11Protocol):
    """One client's connection. Uses h11, which bounds heads and accepts requests that offer an upgrade."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.since = self.loop.time()
        while len(self.connections) >= CONNECTIONS:
            idle = [other for other in self.connections if isinstance(other, Connection) and other.idle]
            if not idle:
                break
            oldest = min(idle, key=lambda other: other.since)
            self.connections.discard(oldest)
            oldest.transport.abort()
        super().connection_made(transport)

    @property
    def idle(self) -> bool:
        """Whether no whole head came since the last answer."""
        return self.cycle is None or self.cycle.response_complete


class Server(uvicorn.Server):
    """A uvicorn server that leaves signals to its owner. ``up`` is set when it listens."""

    def __init__(self, app: Any) -> None:
        config = uvicorn.Config(
            app, http=Connection, h11_max_incomplete_event_size=HEAD_BYTES, lifespan="off", log_config=None,
            log_level="critical", access_log=False, ws="none", server_header=False, proxy_headers=False,
            timeout_graceful_shutdown=1, backlog=ACCEPTED,
        )  # fmt: skip
        super().__init__(config)
        self.up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(CONNECTIONS)  # the loop accepts ``backlog`` at a time, and more may wait
        self.up.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
