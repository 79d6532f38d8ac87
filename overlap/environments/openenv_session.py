"""Sessions of an OpenEnv server: over its WebSocket, or over HTTP routes that keep one environment.

ws     {"type": "reset"|"step"|"close", "data": {...}} ──▶ {"type": "observation"|"error", "data": {...}}
http   POST /reset {"seed": n}, POST /step {"action": {...}} ──▶ {"observation": {...}, "reward": x, "done": b}
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from overlap.environments.openenv_task import InvalidAction, Seen
from overlap.environments.scored import EnvironmentFault, is_finite
from overlap.errors import one_line

if TYPE_CHECKING:
    import aiohttp

MESSAGE_BYTES = 16 << 20
_POLICYS = "VALIDATION_ERROR"
_UNPROCESSABLE = 422


@asynccontextmanager
async def over_socket(client: aiohttp.ClientSession, url: str, step_s: float) -> AsyncIterator[SocketSession]:
    """A session that ends with its connection. Raises EnvironmentFault."""
    import aiohttp

    address = url.replace("http", "ws", 1) + "/ws"
    try:
        socket = await client.ws_connect(address, max_msg_size=MESSAGE_BYTES)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise EnvironmentFault(f"openenv: {address} cannot be reached: {one_line(error, 200)}") from error
    async with socket:
        yield SocketSession(socket, step_s)
        if not socket.closed:
            with suppress(OSError):  # a server that is gone needs no word
                await socket.send_str('{"type": "close"}')


class SocketSession:
    """An environment behind a WebSocket."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, step_s: float) -> None:
        self._socket, self._step_s = socket, step_s

    async def reset(self, seed: int) -> Seen:
        return await self._ask("reset", {"seed": seed})

    async def step(self, action: Mapping[str, Any]) -> Seen:
        return await self._ask("step", action)

    async def _ask(self, what: str, data: Mapping[str, Any]) -> Seen:
        try:
            await self._socket.send_str(json.dumps({"type": what, "data": data}))
            async with asyncio.timeout(self._step_s):
                text = await self._socket.receive_str()
            found = json.loads(text)
            kind, body = found["type"], found["data"]
        except (TimeoutError, TypeError, ValueError, KeyError, OSError, RecursionError) as error:
            told = one_line(error, 200) or type(error).__name__
            raise EnvironmentFault(f"openenv: no answer to {what}: {told}") from error
        if kind == "error":
            told = f"{body.get('message', '')}" if isinstance(body, dict) else str(body)
            if what == "step" and isinstance(body, dict) and body.get("code") == _POLICYS:
                raise InvalidAction(one_line(told, 500))
            raise EnvironmentFault(f"openenv: {what} failed: {one_line(told, 300)}")
        return _seen(body)


@asynccontextmanager
async def over_http(client: aiohttp.ClientSession, url: str, step_s: float) -> AsyncIterator[RouteSession]:
    """The one environment that the server's routes keep."""
    yield RouteSession(client, url, step_s)


class RouteSession:
    """An environment behind ``/reset`` and ``/step``."""

    def __init__(self, client: aiohttp.ClientSession, url: str, step_s: float) -> None:
        self._client, self._url, self._step_s = client, url, step_s

    async def reset(self, seed: int) -> Seen:
        return await self._ask("/reset", {"seed": seed})

    async def step(self, action: Mapping[str, Any]) -> Seen:
        return await self._ask("/step", {"action": action})

    async def _ask(self, path: str, body: Mapping[str, Any]) -> Seen:
        import aiohttp

        try:
            async with asyncio.timeout(self._step_s), self._client.post(self._url + path, json=body) as answer:
                status, text = answer.status, await answer.text()
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:  # of bytes that are no text, too
            told = one_line(error, 200) or type(error).__name__
            raise EnvironmentFault(f"openenv: no answer to {path}: {told}") from error
        if status == _UNPROCESSABLE and path == "/step":
            raise InvalidAction(one_line(text, 500))
        if status != 200:
            raise EnvironmentFault(f"openenv: {path} answered {status}: {one_line(text, 200)}")
        try:
            return _seen(json.loads(text))
        except (ValueError, RecursionError) as error:
            raise EnvironmentFault(f"openenv: {path} answered no JSON: {one_line(text, 200)}") from error


def _seen(body: Any) -> Seen:
    """Raises EnvironmentFault for what is none."""
    observation = body.get("observation") if isinstance(body, dict) else None
    if not isinstance(observation, dict):
        raise EnvironmentFault(f"openenv: an answer without an observation: {one_line(body, 200)}")
    reward = body.get("reward", observation.get("reward"))
    reward = 0.0 if reward is None else reward
    if not is_finite(reward):
        raise EnvironmentFault(f"openenv: {reward!r} as a reward")
    return Seen(observation, float(reward), bool(body.get("done", observation.get("done", False))))
