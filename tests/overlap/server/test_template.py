"""Chat templates of several shapes: sampled ids stay, and what is behind them is rendered."""

from __future__ import annotations

from typing import Any

import pytest
from chats import Letters, Voice, check_books, free, one, prompt, said, user

pytest.importorskip("jinja2")
from templates import NO_CALLS, ONE_CALL, OPEN_TURN, RESULT_FIRST, THINKS, TOOLS_LAST, Templated

from overlap.core import Request, Spoken
from overlap.server.chat import Budget, Chat
from overlap.server.template import ChatTemplate

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
SHAPES = {
    "one call": ONE_CALL,
    "tools last": TOOLS_LAST,
    "open turn": OPEN_TURN,
    "thinks": THINKS,
    "no calls": NO_CALLS,
    "result first": RESULT_FIRST,
}
TWO = [("f", '{"a": 1}'), ("f", '{"a": 2}')]


class Calling(Voice):
    """Makes these calls in its first answer, and none in the second."""

    def __init__(self, calls: list[tuple[str, str]]) -> None:
        super().__init__(lambda request: ("CALL" if request.turn == 1 else "done", "stop"))
        self.calls = calls

    async def parse(self, text: str, token_ids: Any, tools: str) -> Spoken:
        return Spoken("", None, tuple(self.calls)) if text == "CALL" else Spoken(text)


def results(reply: Any) -> list[dict[str, Any]]:
    return [{"role": "tool", "tool_call_id": call.id, "content": f"r{n}"} for n, call in enumerate(reply.calls)]


async def dialogue(tokenizer: Letters, calls: list[tuple[str, str]]) -> tuple[Calling, Chat]:
    """A question, calls with their results, an answer, and one more question."""
    voice = Calling(calls)
    chat = Chat(Request(0, 0, prompt()), voice, ChatTemplate(tokenizer), Budget(9, 9999, 9999), free, reads=True)
    messages = [user("ask")]
    for more in (True, False):
        reply = await chat.say(messages, tools=TOOLS)
        messages += [reply.message, *(results(reply) if more else [user("again")])]
    await chat.say(messages, tools=TOOLS)
    return voice, chat


@pytest.mark.parametrize("calls", [TWO[:1], TWO], ids=["a call", "two calls"])
@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape != "result first"])
async def test_sampled_ids_stay_and_every_result_is_shown_once_behind_calls(shape: str, calls: Any) -> None:
    voice, chat = await dialogue(Templated(SHAPES[shape]), calls)
    assert [turn.parent for turn in chat.episode.turns] == [None, 0, 1]
    assert chat.rerendered == 0
    behind = Letters().decode(chat.episode.turns[1].added)
    assert [behind.count(f"r{n}") for n in range(2)] == [1, len(calls) - 1]
    check_books(voice.sampled, chat, 3)


@pytest.mark.parametrize("shape", ["one call", "tools last", "open turn", "thinks"])
async def test_behind_a_call_stands_what_the_template_itself_shows_there(shape: str) -> None:
    _, chat = await dialogue(Templated(SHAPES[shape]), TWO[:1])
    reply = said("", tool_calls=[{"id": "000010000", "function": {"name": "f", "arguments": '{"a": 1}'}}])
    history = [user("ask"), reply, {"role": "tool", "tool_call_id": "000010000", "content": "r0"}]
    whole = Letters().decode(ChatTemplate(Templated(SHAPES[shape])).whole(history, TOOLS))
    behind = Letters().decode(chat.episode.turns[1].added)
    assert whole.endswith(behind)
    assert "r0" in behind


async def test_a_template_that_shows_calls_otherwise_afterwards_is_rendered_anew_and_the_tokens_are_counted() -> None:
    voice, chat = await dialogue(Templated(RESULT_FIRST), TWO[:1])
    assert [turn.parent for turn in chat.episode.turns] == [None, None, 1]
    assert chat.rerendered == chat.used.rerendered == len(voice.sampled[0][0]) + len(voice.sampled[0][1])
    check_books(voice.sampled, chat, 3)


def history(*calls: Any) -> list[dict[str, Any]]:
    """A changed history, which no turn is known for; the results come in another order than their calls."""
    named = [{"id": f"00000000{n}", "function": {"name": name, "arguments": a}} for n, (name, a) in enumerate(calls)]
    told = [{"role": "tool", "tool_call_id": call["id"], "content": f"r{n}"} for n, call in enumerate(named)]
    return [user("ask"), said("hm", tool_calls=named), *told[::-1], user("on")]


@pytest.mark.parametrize("calls", [TWO, [("f", "no json")]], ids=["two calls", "arguments that are no object"])
def test_calls_that_a_template_refuses_are_shown_call_by_call_and_nothing_ends(calls: Any) -> None:
    class Strict(Templated):
        def apply_chat_template(self, messages: Any, *more: Any, **options: Any) -> str:
            for message in messages:
                for call in message.get("tool_calls", ()):
                    call["function"]["arguments"].items()
            return super().apply_chat_template(messages, *more, **options)

    text = Letters().decode(ChatTemplate(Strict(ONE_CALL)).whole(history(*calls)))
    assert text.count('{"name": "f"') == len(calls)
    at = [text.index('{"a": 2}'), text.index("r1"), text.index('{"a": 1}'), text.index("r0")] if len(calls) > 1 else []
    assert at == sorted(at), "each result stands behind its call"


def test_an_episode_whose_changed_history_cannot_be_shown_ends_and_the_run_goes_on() -> None:
    async def rollout(prompt: Any, chat: Any, sandbox: Any) -> str:
        await chat.say([user("ask")])
        return str((await chat.say(history(*TWO))).text)

    made = one(rollout, tokenizer=Templated(NO_CALLS))
    assert (made.finish, made.failure, made.used.refused) == ("length", "", {"messages": 1})
