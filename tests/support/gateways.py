"""A chat behind a gateway, a client of it, and an engine that answers when it is let."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import pytest
from async_tests import Test, supplied
from chats import Letters, Voice, free, prompt

from overlap.core import Request, Trajectory
from overlap.server.chat import Budget, Chat
from overlap.server.gateway import Gateway
from overlap.server.http_messages import AskedTurn, read_body
from overlap.server.template import ChatTemplate
from overlap.server.turn_request import RequestRules

httpx = pytest.importorskip("httpx")

CHAT = "/chat/completions"
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


async def until(true: Callable[[], bool]) -> None:
    """What the same loop brings about; the caller bounds it."""
    while not true():  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0)


class Session:
    """A chat behind a gateway, and a client of it. ``end`` ends the episode."""

    voice: Any
    end: Callable[[], None]

    def __init__(self, gateway: Gateway, chat: Chat, key: str) -> None:
        self.gateway, self.chat, self.key = gateway, chat, key
        self.client = httpx.AsyncClient(
            base_url=gateway.url, headers={"authorization": f"Bearer {key}"}, trust_env=False
        )

    async def ask(self, *messages: dict[str, Any], headers: dict[str, str] | None = None, **more: Any) -> Any:
        return await self.client.post(CHAT, json={"model": "any", "messages": list(messages), **more}, headers=headers)

    def read(self, *messages: dict[str, Any]) -> AskedTurn:
        """What the gateway makes of the body that ``ask`` sends."""
        body = httpx.Request("POST", "http://x", json={"model": "any", "messages": list(messages)}).content
        return read_body(body, self.chat.rules)

    async def connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection of its own."""
        return await asyncio.open_connection("127.0.0.1", httpx.URL(self.gateway.url).port)

    async def first_line(self, headers: str) -> bytes:
        """Of the answer to a request with these headers, whose body never comes."""
        reader, writer = await self.connected()
        writer.write(
            f"POST /v1{CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {self.key}\r\n{headers}\r\n".encode()
        )
        try:
            return await reader.readline()
        finally:
            writer.close()

    @property
    def trained(self) -> int:
        return sum(branch.trained for branch in self.chat.branches())


@asynccontextmanager
async def opened(
    voice: Voice | None = None,
    turns: int = 20,
    context: int = 2000,
    reads: bool = False,
    rules: RequestRules | None = None,
) -> AsyncIterator[Session]:
    """A session of a chat with these limits, whose policy numbers its answers or is ``voice``."""
    made = voice or Voice(lambda request: (f"a{request.turn}", "stop"))
    chat = Chat(
        Request(0, 0, prompt()),
        made,
        ChatTemplate(Letters()),
        Budget(turns, 1000, context),
        free,
        reads=reads,
        rules=rules,
    )
    async with Gateway() as gateway:
        with ExitStack() as episode:
            session = Session(gateway, chat, episode.enter_context(gateway.session(chat)))
            session.voice, session.end = made, episode.close
            async with session.client:
                yield session


def played(make: Callable[[], Voice] | None = None, **limits: Any) -> Callable[[Test], Callable[..., None]]:
    """Decorate an async test: it gets a session as ``opened`` has it, and the gateway has no fault."""

    def decorate(test: Test) -> Callable[..., None]:
        async def main(work: Test) -> None:
            async with asyncio.timeout(30), opened(make() if make else None, **limits) as session:
                await work(session)
                assert session.gateway.fault is None

        return supplied(test, lambda work: asyncio.run(main(work)))

    return decorate


class Waiting(Voice):
    """Answers when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.let, self.began, self.gone = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.count = 0

    async def generate(self, request: Request) -> Trajectory:
        self.began.set()
        self.count += 1
        try:
            await self.let.wait()
        except asyncio.CancelledError:
            self.gone.set()
            raise
        return await super().generate(request)
