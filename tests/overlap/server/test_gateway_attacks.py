"""Requests and answers that break a gateway: what is nested, torn or halved, clients that leave, and many at once."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from chats import Letters, Voice, said, user
from gateways import CHAT, TOOLS, Session, Waiting, opened, played, until

from overlap.core import Request, Spoken
from overlap.server.template import ChatTemplate
from sandbox.serve import listening

DEEP = "[" * 100_000
HALF = '{"a":"\ud800"}'


class Calling(Voice):
    """Calls a tool with these arguments."""

    arguments = ""

    async def parse(self, text: str, token_ids: Any, tools: str) -> Spoken:
        return Spoken("", None, (("f", self.arguments),))


def called(arguments: Any) -> dict[str, Any]:
    return said("", tool_calls=[{"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("arguments", "told"), [(DEEP, DEEP), (HALF, '{"a":"\ufffd"}')], ids=["deep", "half"])
@played(Calling, reads=True, context=1_000_000)
async def test_whatever_a_policy_says_to_a_tool_is_an_answer_that_can_be_repeated(
    s: Session, arguments: str, told: str, stream: bool
) -> None:
    s.voice.arguments = arguments
    got = await s.ask(user("one"), tools=TOOLS, stream=stream)
    assert got.status_code == 200
    if stream:
        chunks = [json.loads(line[6:]) for line in got.text.split("\n\n") if line and "[DONE]" not in line]
        (call,) = next(found for chunk in chunks if (found := chunk["choices"][0]["delta"].get("tool_calls")))
    else:
        (call,) = got.json()["choices"][0]["message"]["tool_calls"]
    assert call["function"]["arguments"] == told
    again = await s.ask(user("one"), called(told), user("two"), tools=TOOLS)
    assert again.status_code == 200
    assert len(s.chat.branches()) == 1


@played()
async def test_half_a_character_that_json_spells_inside_of_text_is_refused(s: Session) -> None:
    class Strict(Letters):
        def apply_chat_template(self, messages: Any, *given: Any, **more: Any) -> str:
            return "".join(str(message) for message in messages).encode().decode("unicode_escape")

    s.chat._template = ChatTemplate(Strict())
    got = await s.ask(user("one"), called('{"a":"\\ud800"}'), user("two"))
    assert got.status_code == 400
    assert "half a character" in got.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_fault_of_ours_is_noted_however_it_was_to_be_answered(stream: bool) -> None:
    class Broken(Voice):
        async def generate(self, request: Request) -> Any:
            raise KeyError("ours")

    async with opened(Broken()) as s:
        assert "the gateway has a fault" in (await s.ask(user("x"), stream=stream)).text
        assert isinstance(s.gateway.fault, KeyError)


@pytest.mark.parametrize("stream", [False, True])
@played(Waiting)
async def test_a_turn_that_is_asked_for_again_outlives_the_client_that_asked_first(s: Session, stream: bool) -> None:
    first = asyncio.create_task(s.ask(user("x"), stream=stream))
    await s.voice.began.wait()
    again = asyncio.create_task(s.ask(user("x"), stream=stream, headers={"x-stainless-retry-count": "1"}))
    (session,) = s.gateway._sessions.values()
    await until(lambda: s.chat.replayed > 0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await until(lambda: session.inside == 1)
    s.voice.let.set()
    got = await again
    assert (got.status_code, "yes" in got.text) == (200, True)
    assert not s.voice.gone.is_set()
    assert len(s.chat.episode.turns) == 1


@played(turns=3)
async def test_turns_asked_for_at_once_are_no_more_than_the_budget_has(s: Session) -> None:
    got = await asyncio.gather(*(s.ask(user(str(n))) for n in range(20)))
    assert sorted(one.status_code for one in got) == [200] * 3 + [404] * 17
    assert len(s.chat.episode.turns) == 3


@played()
async def test_an_answer_that_is_being_sent_is_not_given_to_another_who_asks_the_same(s: Session) -> None:
    asked = s.read(user("x"))
    (session,) = s.gateway._sessions.values()
    first = asyncio.create_task(s.ask(user("x")))
    await until(lambda: bool(session.replies))
    assert s.chat.episode.delivered == set()
    assert session.known(asked, again=False) is None
    assert session.known(asked, again=True) is session.flying[0]
    assert (await first).status_code == 200


async def test_a_request_whose_episode_ends_while_its_body_comes_samples_nothing() -> None:
    body = json.dumps({"messages": [user("x")]}).encode()
    async with opened() as s:
        reader, writer = await s.connected()
        head = f"POST /v1{CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {s.key}\r\n"
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body[:5])
        (session,) = s.gateway._sessions.values()
        await until(lambda: session.inside > 0)
        s.end()
        writer.write(body[5:])
        assert b"404" in await reader.readline()
        writer.close()
    assert s.voice.seen == []


@played(Waiting)
async def test_connections_that_ask_for_nothing_make_room_for_one_that_does(s: Session, monkeypatch) -> None:
    monkeypatch.setattr(listening, "CONNECTIONS", 8)
    busy = asyncio.create_task(s.ask(user("x")))
    await s.voice.began.wait()
    idle = [await s.connected() for _ in range(20)]
    s.voice.let.set()
    assert (await s.ask(user("y"))).status_code == 200
    assert (await busy).status_code == 200
    assert len(s.gateway._server.server_state.connections) <= listening.CONNECTIONS
    for _, writer in idle:
        writer.close()
