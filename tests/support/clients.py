"""Episodes that real clients roll out: what they sent, the tree that came of it, and the same dialogue without them."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from chats import Letters, Says, Voice, free, prompt
from places import SUPPORT

from overlap.core import Prompt, Request, Spoken
from overlap.server import gateway as gateway_
from overlap.server.chat import Budget, Chat
from overlap.server.gateway import Gateway
from overlap.server.harness import HarnessRollout
from overlap.server.http_messages import read_chat
from overlap.server.template import ChatTemplate

AGENTS = SUPPORT / "agents"
CLIENTS = "OVERLAP_CLIENTS"
"""Names the folder that ``scripts/clients.sh`` made."""
WIDE = Budget(turns=100, tokens=100_000, context=1_000_000)
_CALL = "CALL "


def installed(name: str) -> Path:
    """Where a client lies; skips the test where it lies nowhere."""
    folder = os.environ.get(CLIENTS)
    if not folder:
        pytest.skip(f"{CLIENTS} names no folder of clients: scripts/clients.sh makes one")
    if not (found := Path(folder) / name).is_dir():
        pytest.skip(f"{found} is missing: scripts/clients.sh makes it")
    return found


def calls(*named: tuple[str, Any]) -> str:
    """What the policy says to call tools."""
    return "".join(f"\n{_CALL}{name} {json.dumps(arguments)}" for name, arguments in named)


class Speaker(Voice):
    """A policy that says these, one after the other, and calls tools by lines of its own."""

    def __init__(self, *words: str) -> None:
        says: Says = lambda request: (words[min(request.turn, len(words)) - 1], "stop")  # noqa: E731
        super().__init__(says)
        self.words = words

    async def parse(self, text: str, token_ids: Any, tools: str) -> Spoken:
        first, *rest = text.split(f"\n{_CALL}")
        named = [line.split(" ", 1) for line in rest]
        return Spoken(first, None, tuple((name, arguments) for name, arguments in named))


class Recording:
    """What a gateway was sent: bodies, and the headers of each in small letters."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        read = gateway_._body

        async def body(request: Any, most: int) -> bytes | None:
            found = await read(request, most)
            self.headers.append(dict(request.headers))
            self.bodies.append(json.loads(found or b"{}"))
            return found

        monkeypatch.setattr(gateway_, "_body", body)


class Mine:
    """A task whose answer is what the program wrote to answer.txt, or said."""

    def files(self, prompt: Prompt, text: str) -> Mapping[str, str]:
        return {"prompt.txt": text}

    def answer(self, prompt: Prompt, folder: Path, said: str) -> str:
        written = folder / "answer.txt"
        return written.read_text() if written.exists() else said


@dataclass
class Played:
    """An episode that has ended. ``lingered_s``: from its budget's end, where that came, to the program's."""

    chat: Chat
    answer: str
    lingered_s: float | None
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)


def chat_of(voice: Voice, budget: Budget = WIDE) -> Chat:
    return Chat(Request(0, 0, prompt(text="solve it")), voice, ChatTemplate(Letters()), budget, free, reads=True)


def played(
    command: str, folder: Path, recording: Recording, voice: Voice, budget: Budget = WIDE,
    door: Callable[[], Gateway] = Gateway,
) -> Played:  # fmt: skip
    """Run a program as the rollout of an episode; nothing of it is left."""

    async def main() -> Played:
        chat = chat_of(voice, budget)
        over: list[float] = []

        async def watch() -> None:
            await chat.ended.wait()
            over.append(monotonic())

        async with door() as gateway:
            watching = asyncio.create_task(watch())
            rollout = HarnessRollout(command, Mine(), gateway, folder, lambda prompt: prompt.data)
            sandbox: Any = None
            answer = await rollout(prompt(text="solve it"), chat, sandbox)
            lingered = monotonic() - over[0] if over else None
            watching.cancel()
        return Played(chat, answer, lingered, recording.bodies, recording.headers)

    found = asyncio.run(asyncio.wait_for(main(), 100))
    assert list(folder.iterdir()) == []
    return found


def directly(bodies: list[dict[str, Any]], voice: Voice) -> Chat:
    """The same dialogue as a ``Task.rollout`` would hold it: what the policy said is its ``Reply.message``."""

    async def main() -> Chat:
        chat, known = chat_of(voice), dict[Any, Mapping[str, Any]]()
        for body in bodies:
            asked, _ = read_chat(body, chat.rules)
            messages = [known.get(_heard(message), message) for message in asked.messages]
            reply = await chat.say(messages, tools=asked.offered, max_tokens=asked.max_tokens, stop=asked.stop)
            known[_heard(reply.message)] = reply.message
        return chat

    return asyncio.run(main())


def _heard(message: Mapping[str, Any]) -> Any:
    content = message.get("content") or ""
    called = tuple(call["id"] for call in message.get("tool_calls") or ())
    return message["role"], content.strip() if isinstance(content, str) else json.dumps(content), called


def tree(chat: Chat) -> Any:
    """All that training reads of an episode: each turn with its parent, and the branches with their masks."""
    turns = [
        (turn.parent, tuple(turn.added), tuple(turn.token_ids), tuple(turn.logprobs), turn.finish)
        for turn in chat.episode.turns
    ]
    return turns, sorted(chat.episode.delivered), chat.branches()


class Dropping(Gateway):
    """A gateway behind a wire that is cut once: when the first answer comes."""

    async def __aenter__(self) -> Dropping:
        await super().__aenter__()
        self.cut = False
        self._port = int(super().url.rpartition(":")[2].partition("/")[0])
        self._wire = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._wire.close()
        await super().__aexit__(*exc_info)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._wire.sockets[0].getsockname()[1]}/v1"

    async def _carry(self, asking: asyncio.StreamReader, answering: asyncio.StreamWriter) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)

        async def forth() -> None:
            while part := await asking.read(1 << 16):
                writer.write(part)

        going = asyncio.create_task(forth())
        try:
            while part := await reader.read(1 << 16):
                if not self.cut:
                    self.cut = True
                    break
                answering.write(part)
        finally:
            going.cancel()
            await asyncio.gather(going, return_exceptions=True)
            writer.close()
            answering.close()
