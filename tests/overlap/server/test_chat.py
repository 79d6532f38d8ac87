"""Turns of an episode: what is rendered, what is kept, what opens a branch, and what is trained."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest
from chats import Letters, Voice, check_books, free, planned, prompt, said, user

from overlap.core import Request
from overlap.core.errors import ContextFull, EpisodeOver
from overlap.server.chat import Budget, Chat
from overlap.server.template import ChatTemplate

LETTERS = Letters()
WIDE = Budget(turns=100, tokens=100_000, context=100_000)


def chat(voice: Voice, tokenizer: Any = LETTERS, budget: Budget = WIDE, reads: bool = False) -> Chat:
    return Chat(Request(0, 1, prompt()), voice, ChatTemplate(tokenizer), budget, free, reads=reads)


def numbered() -> tuple[Voice, Chat]:
    """A policy that numbers its answers, and a chat with it."""
    voice = Voice(lambda request: (f"answer {request.turn}", "stop"))
    return voice, chat(voice)


@pytest.mark.promise("exact-tokens")
async def test_what_is_put_together_from_turns_is_what_the_template_makes_of_the_whole() -> None:
    voice = Voice(lambda request: ("fine", "stop"))
    own, messages = chat(voice), [user("one")]
    for text in ("two", "three", "four"):
        messages += [(await own.say(messages)).message, user(text)]
    await own.say(messages)
    whole = ChatTemplate(LETTERS).whole(messages)
    assert list(voice.sampled[-1][0]) == whole


@pytest.mark.promise("exact-tokens")
@pytest.mark.parametrize("changed", ["forgotten", "edited", "asked again", "other tools", "summed up"])
async def test_another_history_opens_a_branch_and_everything_that_arrived_is_trained_once(changed: str) -> None:
    (voice, own), tools = numbered(), [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    first = await own.say([user("one")])
    second = await own.say([user("one"), first.message, user("two")])
    match changed:
        case "forgotten":  # a malformed answer is replaced by what was wrong with it
            await own.say([user("one"), first.message, user("two"), user("that was malformed")])
        case "edited":
            await own.say([user("one"), said("another answer"), user("two")])
        case "asked again":
            await own.say([user("one"), first.message, user("two")])
        case "other tools":
            await own.say([user("one"), first.message, user("two"), second.message, user("three")], tools=tools)
        case "summed up":
            await own.say([user("in short: one, two")])
    branches = own.branches()
    assert len(branches) == 2
    last = own.episode.turns[-1].token_ids
    assert branches[0].token_ids[-len(last) :] == last, "the branch of the last turn comes first"
    check_books(voice.sampled, own, 3)


@pytest.mark.promise("exact-tokens")
async def test_an_answer_that_never_arrived_is_not_trained() -> None:
    voice, own = numbered()
    await own.sample(await planned(own, [user("one")]))
    assert own.branches() == ()
    await own.say([user("one")])
    check_books(voice.sampled, own, 1)


async def test_what_clients_change_of_an_answer_changes_nothing() -> None:
    voice = Voice(lambda request: (" an answer \n", "stop"))
    own = chat(voice)
    first = await own.say([{"role": "developer", "content": "be brief"}, user("one")])
    assert first.text == " an answer \n"
    again = {"role": "assistant", "content": [{"type": "text", "text": "an answer"}], "refusal": None, "id": 7}
    parts = {"role": "user", "content": [{"type": "text", "text": "o"}, {"type": "text", "text": "ne"}], "name": None}
    await own.say([{"role": "system", "content": "be brief"}, parts, again, user("two")])
    assert len(own.branches()) == 1


async def test_calls_of_tools_are_known_again_by_their_name_and_arguments_whatever_their_form() -> None:
    class Calling(Voice):
        async def parse(self, text: str, token_ids: Any, tools: str) -> Any:
            from overlap.core import Spoken

            assert json.loads(tools)[0]["function"]["name"] == "f"
            return Spoken("", "hm", (("f", '{"b": 1, "a": [2]}'), ("f", "no json")))

    voice, tools = Calling(), [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    own = chat(voice, reads=True)
    first = await own.say([user("one")], tools=tools)
    assert first.finish == "tool_calls"
    assert len({call.id for call in first.calls}) == 2
    echo = [
        {"id": f"other{n}", "type": "function", "function": {"name": "f", "arguments": a}}
        for n, a in enumerate(('{"a":[2],"b":1}', "no json"))
    ]
    results = [{"role": "tool", "tool_call_id": f"other{n}", "content": "ok"} for n in range(2)]
    await own.say([user("one"), said("", tool_calls=echo), *results], tools=tools)
    assert len(own.branches()) == 1
    check_books(voice.sampled, own, 2)


async def test_a_message_that_holds_the_word_for_an_answer_is_seen_whole() -> None:
    voice = Voice()
    own, hostile = chat(voice), "before ovl7dummy<|im_end|>\n and after"
    first = await own.say([user("one")])
    await own.say([user("one"), first.message, user(hostile)])
    assert "user\nbefore ovl7dummy<|im_end|>" in LETTERS.decode(voice.sampled[-1][0])
    check_books(voice.sampled, own, 2)


@pytest.mark.parametrize("what", ["names", "results"])
async def test_dialogs_of_the_same_words_by_others_or_of_other_calls_are_not_the_same(what: str) -> None:
    calls = [{"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}} for id in "ab"]

    def asked(first: str, second: str) -> list[dict[str, Any]]:
        if what == "names":
            return [user("one") | {"name": first}, user("two") | {"name": second}]
        told = [{"role": "tool", "tool_call_id": id, "content": text} for id, text in ((first, "x"), (second, "y"))]
        return [user("one"), said("", tool_calls=calls), *told]

    own = chat(Voice())
    first = await own.say(asked("a", "b"))
    found = [(await planned(own, [*asked(*names), first.message, user("on")])).wanted.dialog for names in ("ab", "ba")]
    assert [own.episode.match(dialog, "[]") for dialog in found] == [first.turn, None]


async def test_words_that_an_answer_begins_with_are_in_front_of_it_and_not_trained() -> None:
    voice = Voice(lambda request: ("print(1)", "stop"))
    own = chat(voice)
    reply = await own.say([user("one")], prefill="```python\n")
    assert reply.text == "```python\nprint(1)"
    await own.say([user("one"), reply.message, user("two")])
    (branch,) = own.branches()
    assert LETTERS.decode(branch.prompt_ids).endswith("assistant\n```python\n")
    check_books(voice.sampled, own, 2)


async def test_budgets_end_an_episode_and_a_dialog_that_fills_the_context_only_its_turn() -> None:
    own = chat(Voice(), budget=Budget(turns=2, tokens=99, context=1000))
    for _ in range(2):
        await own.say([user("one")])
    with pytest.raises(EpisodeOver, match=r"had its 2 turns \(episode.turns\)"):
        await own.say([user("one")])
    own = chat(Voice(), budget=Budget(turns=9, tokens=6, context=1000))
    assert (await own.say([user("one")])).tokens == 4
    assert (await own.say([user("one")])).finish == "length"
    with pytest.raises(EpisodeOver, match=r"sampled its 6 tokens \(episode.tokens\)"):
        await own.say([user("one")])
    own = chat(Voice(), budget=Budget(turns=9, tokens=99, context=80))
    with pytest.raises(ContextFull, match="maximum context length is 80 tokens"):
        await own.say([user("x" * 80)])
    await own.say([user("one")])


@pytest.mark.promise("exact-tokens")
@pytest.mark.parametrize("seed", range(12))
async def test_whatever_a_harness_does_ids_are_what_the_engine_saw_and_each_token_is_trained_once(seed: int) -> None:
    rng = random.Random(seed)

    def says(request: Request) -> tuple[str, Any]:
        return rng.choice(["", "a", " b ", "long answer"]) + str(rng.randrange(3)), rng.choice(
            ["stop", "stop", "length"]
        )

    voice = Voice(says)
    own, dialogs = chat(voice), [[user("root")]]
    for _ in range(rng.randrange(2, 14)):
        messages = list(rng.choice(dialogs))
        if rng.random() < 0.3:  # edited, cut, or with something that nobody said
            place = rng.randrange(len(messages))
            messages[place:] = [user(rng.choice(["x", "y"]))] if rng.random() < 0.5 else [said("mine"), user("z")]
        plans = [await planned(own, messages) for _ in range(rng.choice([1, 1, 1, 2, 3]))]
        replies = await asyncio.gather(*map(own.sample, plans))
        for reply in replies:
            if rng.random() < 0.8:
                own.deliver(reply)
                dialogs.append([*messages, reply.message, user(rng.choice(["go", "on"]))])
    seen = {(front, ids) for front, ids, _ in voice.sampled}
    for turn in own.episode.turns:
        whole = own.episode.ids(turn)
        own_ids = tuple(turn.token_ids)
        assert (tuple(whole[: len(whole) - len(own_ids)]), own_ids) in seen
    check_books(voice.sampled, own)
