"""An HTTP/1.1 server on a socket: heads are bounded in size and time, and no client can use up the others' connections.

waits for: connections, requests        woken by: the loop

For the gateway of a trainer's episodes too.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

CONNECTIONS = 4096
"""Limit on open connections; beyond it idle ones are closed, the oldest first."""
HEAD_BYTES = 64 << 10
HEAD_S = 20.0
"""Seconds from the first byte of a request, or from the connection, to the end of its head."""
KEEP_ALIVE_S = 75
CLOSING_S = 5.0
"""Seconds to send what is left when a connection closes: a client that reads nothing does not hold it."""
ACCEPTED = 16
"""Connections that are accepted at a time: more at once would hold the loop up."""
CLOSE_S: Final = 5.0
_LENGTHS: Final = frozenset({b"content-length", b"transfer-encoding"})


class _Requests(h11.Connection):
    """Refuses a request that gives the length of its body twice, where h11 goes by one of the two: a proxy in front
    may go by the other, and would take the rest for a request of its own (RFC 9112, section 6.3).
    """

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        event = super().next_event()
        if isinstance(event, h11.Request) and {name for name, _ in event.headers} >= _LENGTHS:
            raise h11.RemoteProtocolError("both Content-Length and Transfer-Encoding: send one of them")
        return event


class Connection(H11Protocol):
    """One client's connection. Uses h11, which bounds heads and accepts requests that offer an upgrade."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.conn = _Requests(h11.SERVER, self.config.h11_max_incomplete_event_size or HEAD_BYTES)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.since = self.loop.time()
        self._reading_since: float | None = self.since
        self._closing_since: float | None = None
        while len(self.connections) >= CONNECTIONS:
            idle = [other for other in self.connections if isinstance(other, Connection) and other.idle]
            if not idle:
                break
            oldest = min(idle, key=lambda other: other.since)
            self.connections.discard(oldest)
            oldest.transport.abort()
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._reading_since is None and self.idle:
            self._reading_since = self.loop.time()
        super().data_received(data)
        if not self.idle:
            self._reading_since = None

    def send_400_response(self, msg: str) -> None:
        """Answer what is no request, with the reason, and close the connection."""
        super().send_400_response(f"{msg} {sys.exception() or ''}".rstrip())

    @property
    def idle(self) -> bool:
        """True when no whole head came since the last answer."""
        return self.cycle is None or self.cycle.response_complete

    def abort_if_slow(self, now: float) -> None:
        """End it where a head, or the sending of what is left, takes too long."""
        if self.transport.is_closing():
            self._closing_since = self._closing_since or now
            if now - self._closing_since > CLOSING_S:
                self.transport.abort()
        elif self.idle:
            if self._reading_since is None and self.conn.trailing_data[0]:  # it came with the request before
                self._reading_since = now
            if self._reading_since is not None and now - self._reading_since > HEAD_S:
                self.transport.abort()


class Server(uvicorn.Server):
    """A uvicorn server that leaves signals to its owner. ``up`` is set when it listens."""

    def __init__(self, app: Any) -> None:
        config = uvicorn.Config(
            app, http=Connection, h11_max_incomplete_event_size=HEAD_BYTES, lifespan="off", log_config=None,
            log_level="critical", access_log=False, ws="none", server_header=False, proxy_headers=False,
            timeout_graceful_shutdown=1, timeout_keep_alive=KEEP_ALIVE_S, backlog=ACCEPTED,
        )  # fmt: skip
        super().__init__(config)
        self.up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(CONNECTIONS)  # the loop accepts ``backlog`` at a time, and more may wait
        self.up.set()

    async def on_tick(self, counter: int) -> bool:
        if counter % 10 == 0:  # every second
            now = asyncio.get_running_loop().time()
            for connection in list(self.server_state.connections):
                if isinstance(connection, Connection):
                    connection.abort_if_slow(now)
        return await super().on_tick(counter)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    @contextlib.asynccontextmanager
    async def listening(self, listener: socket.socket) -> AsyncIterator[asyncio.Task[None]]:
        """Serve on a bound socket; yields the task that does, which ends early only where it fails. Closes both."""
        serving = asyncio.create_task(self.serve([listener]), name="http server")
        up = asyncio.create_task(self.up.wait())
        try:
            await asyncio.wait((serving, up), return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                serving.result()
            yield serving
        finally:
            up.cancel()
            self.should_exit = True
            await asyncio.wait([serving], timeout=CLOSE_S)
            serving.cancel()
            await asyncio.gather(serving, up, return_exceptions=True)
            listener.close()


def bind(host: str, port: int) -> socket.socket:
    """A socket bound to a TCP port; 0 takes a free one. Raises OSError."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
    except OSError:
        made.close()
        raise
    return made
