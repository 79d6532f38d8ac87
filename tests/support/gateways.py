"""A chat behind a gateway, a client of it, and an engine that answers when it is let."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from chats import Letters, Voice, prompt

from overlap.core import Request, Trajectory
from overlap.server import Chat, ChatTemplate, Gateway
from overlap.server.chat import Budget

httpx = pytest.importorskip("httpx")

CHAT = "/chat/completions"
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


@asynccontextmanager
async def free() -> AsyncIterator[None]:
    yield


async def until(true: Callable[[], bool]) -> None:
    """What the same loop brings about; the caller bounds it."""
    while not true():  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0)


class Session:
    """A chat behind a gateway, and a client of it."""

    def __init__(self, gateway: Gateway, chat: Chat, key: str) -> None:
        self.gateway, self.chat, self.key = gateway, chat, key
        self.client = httpx.AsyncClient(
            base_url=gateway.url, headers={"authorization": f"Bearer {key}"}, trust_env=False
        )

    async def ask(self, *messages: dict[str, Any], headers: dict[str, str] | None = None, **more: Any) -> Any:
        return await self.client.post(CHAT, json={"model": "any", "messages": list(messages), **more}, headers=headers)

    async def first_line(self, headers: str) -> bytes:
        """Of the answer to a request with these headers, whose body never comes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(self.gateway.url).port)
        writer.write(
            f"POST /v1{CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {self.key}\r\n{headers}\r\n".encode()
        )
        try:
            return await reader.readline()
        finally:
            writer.close()

    @property
    def trained(self) -> int:
        return sum(sum(branch.mask) for branch in self.chat.branches())


def play(
    work: Callable[[Session], Awaitable[Any]], voice: Voice | None = None, turns: int = 20, context: int = 2000,
    reads: bool = False,
) -> Any:  # fmt: skip
    async def main() -> Any:
        made = voice or Voice(lambda request: (f"a{request.turn}", "stop"))
        chat = Chat(
            Request(0, 0, prompt()), made, ChatTemplate(Letters()), Budget(turns, 1000, context), free, reads=reads
        )
        async with Gateway() as gateway:
            with gateway.session(chat) as key:
                session = Session(gateway, chat, key)
                async with session.client:
                    found = await work(session)
            assert gateway.fault is None
            return found

    return asyncio.run(asyncio.wait_for(main(), 30))


class Waiting(Voice):
    """Answers when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.let, self.began, self.gone = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.two, self._count = asyncio.Event(), 0

    async def generate(self, request: Request) -> Trajectory:
        self.began.set()
        self._count += 1
        if self._count == 2:
            self.two.set()
        try:
            await self.let.wait()
        except asyncio.CancelledError:
            self.gone.set()
            raise
        return await super().generate(request)
