"""Requests and answers that break a gateway: what is nested, torn or halved, clients that leave, and many at once."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from chats import Letters, Voice, prompt, said, user
from gateways import CHAT, TOOLS, Session, Waiting, free, httpx, play, until

from overlap.core import Request, Spoken
from overlap.server import Chat, ChatTemplate, Gateway, http_messages, listening
from overlap.server.chat import Budget

DEEP = "[" * 100_000
HALF = '{"a":"\ud800"}'


class Calling(Voice):
    """Calls a tool with these arguments."""

    def __init__(self, arguments: str) -> None:
        super().__init__()
        self._arguments = arguments

    async def parse(self, text: str, token_ids: Any, tools: str) -> Spoken:
        return Spoken("", None, (("f", self._arguments),))


def called(arguments: Any) -> dict[str, Any]:
    return said("", tool_calls=[{"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("arguments", "told"), [(DEEP, DEEP), (HALF, '{"a":"\ufffd"}')], ids=["deep", "half"])
def test_whatever_a_policy_says_to_a_tool_is_an_answer_that_can_be_repeated(
    arguments: str, told: str, stream: bool
) -> None:
    async def work(s: Session) -> None:
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

    play(work, Calling(arguments), reads=True, context=1_000_000)


def test_arguments_of_a_tool_that_are_nested_without_end_are_text() -> None:
    async def work(s: Session) -> None:
        assert (await s.ask(user("one"), called(DEEP), user("two"))).status_code == 200

    play(work, context=1_000_000)


def test_half_a_character_that_json_spells_inside_of_text_is_refused() -> None:
    class Strict(Letters):
        def apply_chat_template(self, messages: Any, *given: Any, **more: Any) -> str:
            return "".join(str(message) for message in messages).encode().decode("unicode_escape")

    template = ChatTemplate(Strict())

    async def work(s: Session) -> None:
        s.chat._template = template
        got = await s.ask(user("one"), called('{"a":"\\ud800"}'), user("two"))
        assert got.status_code == 400
        assert "half a character" in got.json()["error"]["message"]

    play(work)


@pytest.mark.parametrize("stream", [False, True])
def test_a_fault_of_ours_is_noted_however_it_was_to_be_answered(stream: bool) -> None:
    class Broken(Voice):
        async def generate(self, request: Request) -> Any:
            raise KeyError("ours")

    async def main() -> None:
        chat = Chat(Request(0, 0, prompt()), Broken(), ChatTemplate(Letters()), Budget(5, 100, 500), free)
        async with Gateway() as gateway:
            with gateway.session(chat) as key:
                s = Session(gateway, chat, key)
                got = await s.ask(user("x"), stream=stream)
                assert "the gateway has a fault" in got.text
                await s.client.aclose()
            assert isinstance(gateway.fault, KeyError)

    asyncio.run(asyncio.wait_for(main(), 30))


@pytest.mark.parametrize("stream", [False, True])
def test_a_turn_that_is_asked_for_again_outlives_the_client_that_asked_first(stream: bool) -> None:
    voice = Waiting()

    async def work(s: Session) -> None:
        first = asyncio.create_task(s.ask(user("x"), stream=stream))
        await voice.began.wait()
        again = asyncio.create_task(s.ask(user("x"), stream=stream, headers={"x-stainless-retry-count": "1"}))
        (session,) = s.gateway._sessions.values()
        await until(lambda: session.replayed > 0)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await until(lambda: session.inside == 1)
        voice.let.set()
        got = await again
        assert (got.status_code, "yes" in got.text) == (200, True)
        assert not voice.gone.is_set()
        assert len(s.chat.episode.turns) == 1

    play(work, voice)


def test_turns_asked_for_at_once_are_no_more_than_the_budget_has() -> None:
    async def work(s: Session) -> None:
        got = await asyncio.gather(*(s.ask(user(str(n))) for n in range(20)))
        assert sorted(one.status_code for one in got) == [200] * 3 + [404] * 17
        assert len(s.chat.episode.turns) == 3

    play(work, turns=3)


def test_an_answer_that_is_being_sent_is_not_given_to_another_who_asks_the_same() -> None:
    async def work(s: Session) -> None:
        asked = http_messages.read_body(json.dumps({"model": "any", "messages": [user("x")]}).encode())
        (session,) = s.gateway._sessions.values()
        first = asyncio.create_task(s.ask(user("x")))
        await until(lambda: bool(session.replies))
        assert s.chat.episode.delivered == set()
        assert session.known(asked, again=False) is None
        assert session.known(asked, again=True) is session.flying[0]
        assert (await first).status_code == 200

    play(work)


def test_a_request_whose_episode_ends_while_its_body_comes_samples_nothing() -> None:
    async def main() -> None:
        voice = Voice()
        chat = Chat(Request(0, 0, prompt()), voice, ChatTemplate(Letters()), Budget(5, 100, 500), free)
        body = json.dumps({"messages": [user("x")]}).encode()
        async with Gateway() as gateway:
            with gateway.session(chat) as key:
                reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(gateway.url).port)
                head = f"POST /v1{CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n"
                writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body[:5])
                (session,) = gateway._sessions.values()
                await until(lambda: session.inside > 0)
            writer.write(body[5:])
            assert b"404" in await reader.readline()
            writer.close()
        assert voice.seen == []

    asyncio.run(asyncio.wait_for(main(), 30))


def test_a_head_without_end_is_cut_off() -> None:
    async def work(s: Session) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(s.gateway.url).port)
        writer.write(b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * listening.HEAD_BYTES)
        assert b"400" in await reader.readline()
        writer.close()

    play(work)


def test_a_client_that_offers_another_protocol_is_answered_in_this_one() -> None:
    async def work(s: Session) -> None:
        offer = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2-settings": "AAEAAEAAAAIAAAAB"}
        assert (await s.ask(user("x"), headers=offer)).status_code == 200

    play(work)


def test_connections_that_ask_for_nothing_make_room_for_one_that_does(monkeypatch) -> None:
    monkeypatch.setattr(listening, "CONNECTIONS", 8)
    voice = Waiting()

    async def work(s: Session) -> None:
        busy = asyncio.create_task(s.ask(user("x")))
        await voice.began.wait()
        port = httpx.URL(s.gateway.url).port
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
        voice.let.set()
        assert (await s.ask(user("y"))).status_code == 200
        assert (await busy).status_code == 200
        assert len(s.gateway._server.server_state.connections) <= listening.CONNECTIONS
        for _, writer in idle:
            writer.close()

    play(work, voice)
