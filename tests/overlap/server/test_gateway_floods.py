"""Clients that send too much or too many: what is bounded before it is read, what waits, and what goes on beside it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from chats import Letters, Voice, free, planned, prompt, user
from gateways import CHAT, Session, Waiting, played, until

from overlap.core import Request, Trajectory
from overlap.core.errors import ContextFull
from overlap.server import gateway as gateway_
from overlap.server import gateway_session
from overlap.server.chat import SHORT, Budget, Chat
from overlap.server.template import ChatTemplate

LONG = "x" * (SHORT + 1)


class Waits(Letters):
    """Renders long texts when it is let; knows in which threads it did, and how many at once."""

    def __init__(self) -> None:
        self.let, self.began = threading.Event(), threading.Semaphore(0)
        self.threads: list[str] = []

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        if len(text) > SHORT:
            self.threads.append(threading.current_thread().name)
            self.began.release()
            assert self.let.wait(20)
        return super().__call__(text)


def chats(tokenizer: Letters, count: int) -> list[Chat]:
    template, budget = ChatTemplate(tokenizer), Budget(9, 9999, 99_999)
    return [Chat(Request(n, 0, prompt()), Voice(), template, budget, free) for n in range(count)]


async def test_an_episode_renders_one_long_text_at_a_time_in_a_thread_while_others_go_on() -> None:
    tokenizer = Waits()
    busy, other = chats(tokenizer, 2)
    try:
        asking = [asyncio.create_task(planned(busy, [user(LONG + str(n))])) for n in range(3)]
        await asyncio.to_thread(tokenizer.began.acquire, timeout=20)
        assert (await other.say([user("short")])).text == "yes"
        beside = asyncio.create_task(planned(other, [user(LONG)]))
        await asyncio.to_thread(tokenizer.began.acquire, timeout=20)
        assert len(tokenizer.threads) == 2, "one of each episode"
        asking[0].cancel()
        await asyncio.gather(asking[0], return_exceptions=True)
        assert len(tokenizer.threads) == 2, "a thread that nobody waits for still counts"
    finally:
        tokenizer.let.set()
    await asyncio.gather(beside, *asking[1:])
    assert {name.rpartition("_")[0] for name in tokenizer.threads} == {"chat template"}


async def test_a_text_that_fills_the_context_whatever_its_tokens_are_is_not_rendered() -> None:
    tokenizer = Waits()
    (chat,) = chats(tokenizer, 1)
    with pytest.raises(ContextFull, match=r"maximum context length is 99999 tokens.* more than 100000 tokens"):
        await planned(chat, [user("x" * (100_000 * ChatTemplate(Letters()).longest))])
    assert tokenizer.threads == []


@pytest.mark.parametrize("body", [b'{"messages": [' + b"[]," * 200_000, b'{"a": "' + b'","' * 300_000, b"{" * 200_000])
@played()
async def test_a_body_of_very_many_values_is_refused_before_they_are_read(s: Session, body: bytes) -> None:
    got = await s.client.post(CHAT, content=body)
    assert got.status_code == 400
    assert "values; at most 100000 are read" in got.json()["error"]["message"]


@played(Waiting, turns=1000)
async def test_64_threads_of_one_client_get_their_answers_and_a_part_of_them_is_sampled_at_a_time(s: Session) -> None:
    asking = [asyncio.create_task(s.ask(user(str(n)))) for n in range(64)]
    (session,) = s.gateway._sessions.values()
    await until(lambda: len(session.asking) == 64 and all(turn.planned.is_set() for turn in session.flying))
    for _ in range(100):  # no more of them begin
        await asyncio.sleep(0)
    assert s.voice.count == gateway_session.SAMPLED_AT_ONCE
    s.voice.let.set()
    assert {got.status_code for got in await asyncio.gather(*asking)} == {200}


@played(Waiting)
async def test_who_has_too_many_requests_in_flight_is_told_when_to_come_again(s: Session, monkeypatch) -> None:
    monkeypatch.setattr(gateway_, "IN_FLIGHT_MAX", 1)
    first = asyncio.create_task(s.ask(user("x")))
    await s.voice.began.wait()
    got = await s.ask(user("y" * 300_000))
    assert (got.status_code, got.headers["retry-after"]) == (429, "1")
    assert s.chat.used.refused == {"requests": 1}
    s.voice.let.set()
    assert (await first).status_code == 200


@played(Waiting)
async def test_of_the_long_bodies_that_are_dropped_an_episode_sends_one_at_a_time(s: Session, monkeypatch) -> None:
    monkeypatch.setattr(gateway_, "IN_FLIGHT_MAX", 1)
    drops, plain = [0, 0], gateway_._body

    async def dropped(request: Any, most: int) -> bytes | None:
        drops[0] += 1
        drops[1] = max(drops)
        try:
            return await plain(request, most)
        finally:
            drops[0] -= 1

    first = asyncio.create_task(s.ask(user("x")))
    await s.voice.began.wait()
    monkeypatch.setattr(gateway_, "_body", dropped)
    got = await asyncio.gather(*(s.ask(user("y" * 3_000_000)) for _ in range(4)))
    assert {each.status_code for each in got} == {429}
    assert drops == [0, 1]
    s.voice.let.set()
    assert (await first).status_code == 200


@played()
async def test_who_sends_a_whole_body_that_is_too_long_reads_why_it_was_refused(s: Session, monkeypatch) -> None:
    monkeypatch.setattr(gateway_, "BODY_BYTES", 100_000)
    reader, writer = await s.connected()
    size = 8_000_000
    head = f"POST /v1{CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {s.key}\r\ncontent-length: {size}\r\n\r\n"
    writer.write(head.encode() + b"x" * size)
    await writer.drain()  # all of it is taken
    answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"longer than 100000 bytes" in answer


class Failing(Voice):
    async def generate(self, request: Request) -> Trajectory:
        raise AssertionError("nothing is sampled")


@played(Failing)
async def test_a_long_request_whose_client_left_while_it_was_rendered_samples_nothing(s: Session) -> None:
    tokenizer = Waits()
    s.chat._template = ChatTemplate(tokenizer)
    s.chat._budget = Budget(9, 9999, 99_999)
    asking = asyncio.create_task(s.ask(user(LONG)))
    await asyncio.to_thread(tokenizer.began.acquire, timeout=20)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    (session,) = s.gateway._sessions.values()
    await until(lambda: session.inside == 0)
    tokenizer.let.set()
    assert session.flying == []


class Counting(Letters):
    """Its own tokenizer is the one behind it, and lists its ids only when it is asked for them."""

    class Found:
        def __init__(self, count: int) -> None:
            self.count = count

        def __len__(self) -> int:
            return self.count

        @property
        def ids(self) -> list[int]:
            assert self.count < 200_000, "a list of so many blocks all threads"
            return [20] * self.count

    @property
    def backend_tokenizer(self) -> Any:
        return self

    def encode_batch(self, texts: list[str], add_special_tokens: bool) -> list[Found]:
        return [self.Found(len(text)) for text in texts]


def test_ids_that_fill_the_context_are_counted_and_not_listed() -> None:
    template = ChatTemplate(Counting(), context=200_000)
    assert len(template.says("x" * 150_000)) == 150_000
    with pytest.raises(ContextFull, match=r"maximum context length is 200000 tokens.* have 300000 tokens"):
        template.says("x" * 300_000)


@pytest.mark.parametrize(
    "asked",
    [
        {"messages": [{"role": "x" * 50_000}]},
        {"messages": [{"role": "user", "content": [{"type": "x" * 50_000}]}]},
        {"messages": [user("x")], "max_tokens": "x" * 50_000},
        {"messages": [user("x")], "tool_choice": "x" * 50_000},
        {"messages": [user("x")], "chat_template_kwargs": {"a": "x" * 50_000}},
        {"messages": [user("x")], "response_format": "x" * 50_000},
    ],
)
@played(context=1_000_000)
async def test_what_a_request_holds_is_not_repeated_at_length_by_its_refusal(s: Session, asked: dict[str, Any]) -> None:
    got = await s.client.post(CHAT, json=asked)
    assert got.status_code == 400
    assert len(got.text) < 500
    assert len(s.chat.refusal) < 500


@played()
async def test_a_route_that_is_asked_for_at_length_or_with_a_line_of_its_own_is_one_short_line(s: Session) -> None:
    reader, writer = await s.connected()
    head = f"{'A' * 60_000} /v1/a%0a%1b[2Jb HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
    writer.write(f"{head}authorization: Bearer {s.key}\r\n\r\n".encode())
    assert (await reader.read()).startswith(b"HTTP/1.1 404")
    writer.close()
    assert len(s.chat.refusal) < 300
    assert s.chat.refusal.isprintable()
