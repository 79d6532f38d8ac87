"""The gateway: what a client gets, what it may ask, what is sampled once, and what nobody gets in with."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from chats import Letters, Voice, planned, user
from gateways import CHAT, TOOLS, Session, Waiting, opened, played

from overlap.core import Request, Spoken, Trajectory
from overlap.core.errors import EngineError
from overlap.server import gateway as gateway_

httpx = pytest.importorskip("httpx")


@played()
async def test_an_answer_has_the_form_that_clients_know_and_is_trained_when_it_was_sent(s: Session) -> None:
    got = await s.ask(user("one"), temperature=0.0, seed=3, user="x", store=True, something_new={"a": 1})
    assert got.status_code == 200
    body = got.json()
    assert body["object"] == "chat.completion"
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "a1", "refusal": None}
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["completion_tokens"] == 3
    assert s.trained == 3
    again = await s.ask(user("one"), body["choices"][0]["message"], user("two"))
    assert again.json()["choices"][0]["message"]["content"] == "a2"
    assert len(s.chat.branches()) == 1
    assert s.trained == 6


class Calling(Voice):
    async def parse(self, text: str, token_ids: Any, tools: str) -> Spoken:
        return Spoken("", "hm", (("f", "{}"), ("f", '{"a":1}')))


@played(Calling, reads=True)
async def test_a_stream_has_role_content_an_event_per_call_the_end_and_the_usage_if_asked(s: Session) -> None:
    got = await s.ask(user("one"), stream=True, stream_options={"include_usage": True}, tools=TOOLS)
    assert got.headers["content-type"].startswith("text/event-stream")
    lines = [line.removeprefix("data: ") for line in got.text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    chunks = [json.loads(line) for line in lines[:-1]]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert deltas[1]["reasoning"] == deltas[1]["reasoning_content"] == "hm"
    called = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert [(call["index"], call["function"]["arguments"]) for call in called] == [(0, "{}"), (1, '{"a":1}')]
    assert {len(delta.get("tool_calls", "1")) for delta in deltas} == {1}, (
        "some clients read only the first of an event"
    )
    assert chunks[-2]["choices"][0]["finish_reason"] == "tool_calls"
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["total_tokens"] > 0
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert s.trained > 0


@pytest.mark.promise("gateway")
@pytest.mark.parametrize(
    ("more", "name"),
    [
        ({"n": 2}, "n"),
        ({"response_format": {"type": "grammar"}}, "response_format"),
        ({"chat_template_kwargs": {"enable_thinking": True}}, "chat_template_kwargs"),
        ({"logit_bias": {"5": 100}}, "logit_bias"),
        ({"logprobs": True}, "logprobs"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "any"}, "tool_choice"),
        ({"structured_outputs": {"json": {}}}, "structured_outputs"),
        ({"tools": TOOLS * 5000}, "tools"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [user("x")] * 5000}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages[0]"),
    ],
)
@played()
async def test_what_would_change_the_law_or_cannot_be_read_is_refused_by_name(s: Session, more: Any, name: str) -> None:
    body = {"model": "m", "messages": [user("x")]} | more
    got = await s.client.post(CHAT, json=body)
    assert got.status_code == 400
    error = got.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == name
    assert name in error["message"]
    assert s.chat.episode.turns == []


@pytest.mark.parametrize(
    "body",
    [b"", b"nonsense", b"[1]", b"[" * 100_000, b'{"messages": [{"role": "user", "content": "\\ud800"}]}', b"\xff\xfe",
     b'{"a": ' + b"9" * 10_000 + b"}"],
)  # fmt: skip
@played()
async def test_a_body_that_is_no_request_is_refused(s: Session, body: bytes) -> None:
    got = await s.client.post(CHAT, content=body)
    assert got.status_code == 400
    assert got.json()["error"]["message"]


@pytest.mark.promise("gateway")
@pytest.mark.parametrize(
    "key", [None, "", "Bearer", "Bearer x", "Basic {key}", "Bearer {key}x", "Bearer \u00e4".encode()]
)
@pytest.mark.parametrize("path", [CHAT, "/models"])
@played()
async def test_without_the_key_of_an_episode_nothing_is_read_and_nothing_told(s: Session, key: Any, path: str) -> None:
    value = key.format(key=s.key).encode() if isinstance(key, str) else key
    headers = [] if value is None else [(b"authorization", value)]
    async with httpx.AsyncClient(base_url=s.gateway.url, headers=headers, trust_env=False) as stranger:
        got = await (stranger.get(path) if path == "/models" else stranger.post(path, content=b"{"))
    assert got.status_code == 401
    assert got.headers["x-should-retry"] == "false"


@pytest.mark.promise("gateway")
async def test_the_key_of_one_episode_opens_nothing_of_another_and_nothing_when_it_has_ended() -> None:
    async with opened() as other, opened() as s:
        theirs = {"authorization": f"Bearer {other.key}"}
        assert (await s.ask(user("x"))).status_code == 200
        assert (await s.ask(user("x"), headers=theirs)).status_code == 401
        with s.gateway.session(other.chat) as key:  # two episodes of one gateway
            assert (await s.ask(user("x"), headers={"authorization": f"Bearer {key}"})).status_code == 200
            assert [len(one.chat.episode.turns) for one in (s, other)] == [1, 1]
            s.end()
            assert (await s.ask(user("x"))).status_code == 401
            assert (await s.ask(user("y"), headers={"authorization": f"Bearer {key}"})).status_code == 200


@played()
async def test_a_body_without_end_is_cut_off_and_one_that_is_declared_long_is_not_read(s: Session, monkeypatch) -> None:
    monkeypatch.setattr(gateway_, "BODY_BYTES", 100_000)
    monkeypatch.setattr(gateway_, "DROPPED_BYTES", 200_000)
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while sent < 50_000_000:
            sent += 50_000
            yield b"x" * 50_000

    try:
        got = await s.client.post(CHAT, content=endless())
        assert got.status_code == 413
    except httpx.TransportError:  # it hung up while we still sent
        pass
    assert sent < 50_000_000
    assert b"413" in await s.first_line(f"content-length: {1 << 30}\r\n")


@played()
async def test_a_body_that_never_comes_ends_with_its_time(s: Session, monkeypatch) -> None:
    monkeypatch.setattr(gateway_, "BODY_S", 0.05)
    assert b"413" in await s.first_line("content-length: 10\r\n")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_takes_its_turn_back(stream: bool) -> None:
    async with opened(Waiting()) as s:
        asking = asyncio.create_task(s.ask(user("x"), stream=stream))
        await s.voice.began.wait()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await s.client.aclose()
        await s.voice.gone.wait()
    assert s.chat.branches() == ()
    assert s.chat.episode.turns == []


async def test_the_end_of_an_episode_takes_its_turns_back_and_answers_that_it_is_over() -> None:
    async with opened(Waiting()) as s:
        asking = asyncio.create_task(s.ask(user("x")))
        await s.voice.began.wait()
        s.end()
        got = await asking
        assert (got.status_code, got.headers["x-should-retry"]) == (404, "false")
    assert s.voice.gone.is_set()


@played(turns=1)
async def test_an_episode_over_its_budget_is_told_so_in_a_way_in_which_no_client_asks_again(s: Session) -> None:
    assert (await s.ask(user("x"))).status_code == 200
    got = await s.ask(user("y"))
    assert (got.status_code, got.headers["x-should-retry"]) == (404, "false")
    assert got.json()["error"]["type"] == "not_found_error"
    assert "had its 1 turns (episode.turns)" in got.json()["error"]["message"]
    assert s.chat.over


@pytest.mark.parametrize(
    "message",
    [
        {"content": [{"type": "refusal", "refusal": "no"}]},
        {"content": [{"type": "text", "text": "n"}, {"type": "refusal", "refusal": "o"}], "refusal": None},
        {"content": None, "refusal": "no"},
        {"refusal": "no"},
        {"content": "n", "refusal": "o"},
    ],
)
@played()
async def test_a_refusal_is_text(s: Session, message: dict[str, Any]) -> None:
    assert (await s.ask(user("x"), {"role": "assistant", **message}, user("y"))).status_code == 200
    assert "assistant\nno<|im_end|>" in Letters().decode(s.voice.seen[-1].prompt.token_ids)


@pytest.mark.parametrize(
    ("limits", "tokens"),
    [
        ({"max_tokens": 5, "max_completion_tokens": 50}, 5),
        ({"max_tokens": 50, "max_completion_tokens": 5}, 5),
        ({"max_tokens": 5, "max_completion_tokens": None}, 5),
        ({"max_tokens": 5, "max_completion_tokens": "50"}, None),
        ({"max_tokens": 0, "max_completion_tokens": 50}, None),
    ],
)
@played(lambda: Voice(lambda request: ("abcdefghijklmnop", "stop")))
async def test_the_smaller_of_two_limits_holds(s: Session, limits: dict[str, Any], tokens: int | None) -> None:
    got = await s.ask(user("x"), **limits)
    assert got.status_code == (400 if tokens is None else 200)
    assert tokens is None or got.json()["usage"]["completion_tokens"] == tokens


@played(context=100)
async def test_a_dialog_that_is_too_long_is_told_in_the_words_that_clients_look_for(s: Session) -> None:
    got = await s.ask(user("x" * 100))
    assert got.status_code == 400
    assert got.json()["error"]["code"] == "context_length_exceeded"
    assert got.json()["error"]["message"].startswith("This model's maximum context length is 100 tokens.")


@pytest.mark.promise("gateway")
@played()
async def test_a_request_that_is_asked_again_gets_the_recorded_answer_and_nothing_is_sampled(s: Session) -> None:
    first = await s.ask(user("x"))
    again = await s.ask(user("x"), headers={"x-stainless-retry-count": "1"})
    assert again.json()["choices"] == first.json()["choices"]
    fresh = await s.ask(user("x"))  # a client that wants another sample gets one
    assert fresh.json()["choices"] != first.json()["choices"]
    assert len(s.chat.episode.turns) == 2
    assert s.trained == 6


@played()
async def test_an_answer_that_never_arrived_is_given_to_whoever_asks_the_same_again(s: Session) -> None:
    plan = await planned(s.chat, [user("x")])
    reply = await s.chat.sample(plan)
    digest = s.read(user("x")).digest
    (session,) = s.gateway._sessions.values()
    session.replies[digest] = [reply]
    assert s.trained == 0
    got = await s.ask(user("x"))
    assert got.json()["choices"][0]["message"]["content"] == "a1"
    assert len(s.chat.episode.turns) == 1
    assert s.trained == 3
    assert s.chat.replayed == 1


class Broken(Voice):
    async def generate(self, request: Request) -> Trajectory:
        raise EngineError("it died")


@played(Broken)
async def test_a_fault_of_the_engine_is_none_of_the_request(s: Session) -> None:
    got = await s.ask(user("x"))
    assert got.status_code == 503
    assert "it died" in got.json()["error"]["message"]
