"""What a rollout does wrong is told by what it is, with the prompt and the line, and keeps nobody."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from chats import Letters, Voice, one, prompt, rolling, user

from overlap.core import Request, Trajectory
from overlap.core.errors import EpisodeError, EpisodeOver, RolloutError
from overlap.server import chat as chat_


def saying(*messages: Any, **options: Any) -> Any:
    async def rollout(prompt: Any, chat: Any, sandbox: Any) -> Any:
        return (await chat.say(*messages, **options)).text  # as the task has it

    return rollout


@pytest.mark.parametrize(
    ("messages", "options", "says"),
    [
        ([], {}, "messages: it is empty"),
        ("hello", {}, "messages: use a list of them, not str"),
        (user("hello"), {}, "messages: use a list of them, not dict"),
        ([{"role": "robot", "content": "x"}], {}, r"messages\[0\]: role 'robot' is none of system"),
        ([user("a"), {"role": "user", "content": [{"type": "image_url"}]}], {}, r"messages\[1\]: a part of type '"),
        ([{"role": "assistant", "tool_calls": [{}]}], {}, r"messages\[0\]: a tool call without a function's name"),
        (["hello"], {}, r"messages\[0\]: use a mapping, not str"),
        ([user("hello")], {"stop": "end"}, r"stop: 'end' is no list of texts"),
        ([user("hello")], {"stop": [""]}, r"stop: \[''\] is no list of texts"),
        ([user("hello")], {"max_tokens": 0}, "max_tokens: 0 is no number of tokens"),
        ([user("hello")], {"max_tokens": "9"}, "max_tokens: '9' is no number of tokens"),
        ([user("hello")], {"tools": ["f"]}, "tools: use a list of mappings"),
        ([user("hello")], {"tools": {"type": "function"}}, "tools: use a list of mappings"),
        ([user("hello")], {"prefill": None}, "prefill: use text, not NoneType"),
    ],
)
def test_what_is_no_request_is_an_error_of_the_task_and_no_end_of_a_budget(
    messages: Any, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(
        RolloutError, match=f"(?s)^Mine.rollout raised RequestRefused: {says}.*, for prompt 'p9'"
    ) as told:
        one(saying(messages, **options))
    assert "as the task has it" in str(told.value)


def test_a_reply_in_the_place_of_its_message_is_told_with_the_way_out() -> None:
    async def rollout(prompt: Any, chat: Any, sandbox: Any) -> Any:
        reply = await chat.say([user("a")])
        await chat.say([user("a"), reply, user("b")])

    with pytest.raises(RolloutError, match=r"messages\[1\]: use a mapping, not Reply; a reply's is reply.message"):
        one(rollout)


class Strict(Letters):
    """Takes no two messages of a user behind each other, and nothing but objects for arguments."""

    def rendered(self, messages: list[dict[str, Any]], number: int) -> str:
        if number and messages[number]["role"] == messages[number - 1]["role"]:
            raise ValueError("roles must alternate")
        for call in messages[number].get("tool_calls", ()):
            call["function"]["arguments"].items()
        return super().rendered(messages, number)


def test_messages_that_the_template_refuses_are_an_error_of_the_task() -> None:
    with pytest.raises(RolloutError, match="chat template refuses these messages: roles must alternate"):
        one(saying([user("a"), user("b")]), tokenizer=Strict())


def test_a_call_that_the_template_cannot_show_as_it_is_is_the_policys_doing_and_shown_otherwise() -> None:
    called = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[1"}}]}
    made = one(saying([user("a"), called, user("b")]), tokenizer=Strict())
    assert (made.finish, made.failure) == ("stop", "")
    assert '{"arguments": "[1"}' in Letters().decode(made.prompt_ids)


def test_who_asks_on_whatever_the_answer_leaves_the_loop_to_others_and_is_told(monkeypatch: Any) -> None:
    monkeypatch.setattr(chat_, "REFUSED_S", 0.01)
    others, seen = 0, set[int]()

    async def rollout(prompt: Any, chat: Any, sandbox: Any) -> str:
        async def counts() -> None:
            nonlocal others
            while True:
                others += 1
                await asyncio.sleep(0)

        beside = asyncio.create_task(counts())
        try:
            while True:
                try:
                    await chat.say([user("again")])
                except EpisodeError:
                    seen.add(others)
        finally:
            beside.cancel()

    with pytest.raises(RolloutError, match=r"100 turns were refused, the last one so: .* its 16 turns \(episode.turns"):
        one(rollout)
    assert len(seen) >= chat_.REFUSALS - 1, "the others went on between any two refusals"


class Slow(Voice):
    """An engine that answers nothing; knows how many turns are in it."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.began = 0, asyncio.Event()

    async def generate(self, request: Request) -> Trajectory:
        self.inside += 1
        self.began.set()
        try:
            return await asyncio.Future()
        finally:
            self.inside -= 1


async def test_a_turn_that_nobody_waits_for_ends_with_its_episode() -> None:
    left: list[asyncio.Task[Any]] = []

    async def rollout(prompt: Any, chat: Any, sandbox: Any) -> str:
        left.append(asyncio.create_task(chat.say([user("a")])))
        await engine.began.wait()
        return "done"

    engine = Slow()
    made = await rolling(rollout, engine).generate(Request(0, 0, prompt()))
    assert engine.inside == 0
    with pytest.raises(EpisodeOver, match="it has ended"):
        await left[0]
    assert made.text == "done"
