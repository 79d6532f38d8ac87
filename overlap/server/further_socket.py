"""A server that runs already, on one more socket for a while."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import uvicorn


@contextlib.asynccontextmanager
async def also_on(server: uvicorn.Server, listener: socket.socket) -> AsyncIterator[None]:
    """Serve on a further socket, which is closed at the end, as are all connections that came from there."""
    made: list[Any] = []
    config = server.config

    def connect() -> asyncio.Protocol:
        made[:] = [one for one in made if one in server.server_state.connections]
        kind: Any = config.http_protocol_class
        made.append(kind(config=config, server_state=server.server_state, app_state=server.lifespan.state))
        one: asyncio.Protocol = made[-1]
        return one

    listening = await asyncio.get_running_loop().create_server(connect, sock=listener, backlog=config.backlog)
    try:
        yield
    finally:
        listening.close()
        for one in made:
            if one.transport is not None and not one.transport.is_closing():
                one.transport.abort()
