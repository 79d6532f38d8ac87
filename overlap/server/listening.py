"""What listens for the gateway: HTTP/1.1, with bounded heads, and room for every client whatever one of them holds.

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
"""So many are open at most; then those that ask for nothing are closed, the oldest first."""
HEAD_BYTES = 64 << 10


class Connection(H11Protocol):
    """Of one client. The pure parser: it bounds what it keeps of a head, and reads a request that offers an upgrade."""

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
        """It has sent no whole head since its last answer."""
        return self.cycle is None or self.cycle.response_complete


class Server(uvicorn.Server):
    """One whose owner has the signals. ``up`` is set when it listens."""

    def __init__(self, app: Any) -> None:
        config = uvicorn.Config(
            app, http=Connection, h11_max_incomplete_event_size=HEAD_BYTES, lifespan="off", log_config=None,
            log_level="critical", access_log=False, ws="none", server_header=False, proxy_headers=False,
            timeout_graceful_shutdown=1,
        )  # fmt: skip
        super().__init__(config)
        self.up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
