"""What requests may ask for, and the routes that lead to one tree of turns."""

from __future__ import annotations

import json
from datetime import date
from typing import Any

import pytest
from chats import Voice, check_books, said, user
from gateways import CHAT, TOOLS, Session, opened, played

from overlap.core import Spoken
from overlap.record.progress import refusals
from overlap.server.turn_request import RequestRules

FORCED = {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "f"}}}
JSON = {"response_format": {"type": "json_object"}}
SCHEMA = {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}}


@pytest.mark.parametrize(
    ("more", "rules", "name"),
    [
        (JSON, RequestRules(), ""),
        (SCHEMA, RequestRules(), ""),
        ({"response_format": {"type": "text"}}, RequestRules("refuse"), None),
        (JSON, RequestRules("refuse"), "response_format"),
        (SCHEMA, RequestRules("refuse"), "response_format"),
        (FORCED, RequestRules(), ""),
        ({"tools": TOOLS, "tool_choice": "required"}, RequestRules(), ""),
        ({"tools": TOOLS, "tool_choice": "required"}, RequestRules("refuse"), "tool_choice"),
        (FORCED, RequestRules("refuse"), "tool_choice"),
        (FORCED, RequestRules(calls=False), "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "required"}, RequestRules(calls=False), "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "auto"}, RequestRules("refuse", calls=False), None),
        ({"chat_template_kwargs": {"thinks": False}}, RequestRules(template={"thinks": False, "b": 1}), None),
        ({"chat_template_kwargs": {"thinks": True}}, RequestRules(template={"thinks": False}), "chat_template_kwargs"),
        (
            {"chat_template_kwargs": {"day": 1}},
            RequestRules(template={"day": date(2026, 1, 2)}),
            "chat_template_kwargs",
        ),
    ],
)
async def test_a_form_is_never_forced_and_what_has_no_effect_or_is_refused_is_counted(
    more: Any, rules: RequestRules, name: str | None
) -> None:
    async with opened(rules=rules) as s:
        got = await s.ask(user("x"), **more)
        parameter = next(key for key in more if key != "tools")
        assert got.status_code == (400 if name else 200)
        if name:
            assert got.json()["error"]["param"] == name
        assert s.chat.used.refused == ({name: 1} if name else {})
        assert s.chat.used.ignored == ({parameter: 1} if name == "" else {})


@played()
async def test_refusals_are_counted_by_parameter_whatever_they_are_about(s: Session) -> None:
    await s.ask(user("x"), n=2)
    await s.ask(user("x"), n=3)
    await s.ask(user("x" * 3000))
    await s.ask({"role": "robot"})
    await s.client.post(CHAT, content=b"no json")
    await s.client.post("/embeddings", content=b"{}")
    assert s.chat.used.refused == {"n": 2, "context": 1, "messages": 1, "body": 1, "route": 1}
    reasons = {line.partition(", ")[2] for line in refusals(s.chat.used.refused)}
    assert len(reasons) == 4, "what is no field of a request has a reason of its own in the last lines of a run"
    assert s.chat.refusal.startswith("n: it would change")


@played()
async def test_a_limit_that_is_null_is_none_and_the_older_name_counts(s: Session) -> None:
    got = await s.ask(user("x"), max_completion_tokens=None, max_tokens=1)
    assert (got.json()["choices"][0]["finish_reason"], got.json()["usage"]["completion_tokens"]) == ("length", 1)


@played()
async def test_the_model_is_there_under_any_name(s: Session) -> None:
    got = await s.client.get("/models/openai/gpt")
    assert (got.status_code, got.json()["id"]) == (200, "openai/gpt")


class Calling(Voice):
    """Thinks and calls a tool first, and answers then."""

    async def parse(self, text: str, token_ids: Any, tools: str) -> Spoken:
        return Spoken("", "hm", (("f", "{}"), ("f", '{"a": 1}'))) if text == "a1" else Spoken(text)


def numbered() -> Calling:
    return Calling(lambda request: (f"a{request.turn}", "stop"))


FUNCTIONS = [{"type": "function", **TOOLS[0]["function"]}]


def outputs(found: Any) -> list[dict[str, Any]]:
    calls = [item for item in found["output"] if item["type"] == "function_call"]
    return [{"type": "function_call_output", "call_id": call["call_id"], "output": "42"} for call in calls]


@pytest.mark.parametrize("follows", [False, True], ids=["whole dialogs", "by the answer before"])
async def test_responses_are_the_same_turns_as_chat_completions(follows: bool) -> None:
    async with opened(numbered(), reads=True) as s:
        first = (
            await s.client.post("/responses", json={"input": "one", "instructions": "be brief", "tools": FUNCTIONS})
        ).json()
        assert [item["type"] for item in first["output"]] == ["reasoning", "function_call", "function_call"]
        assert (first["status"], first["usage"]["output_tokens"]) == ("completed", 3)
        asked: dict[str, Any] = {"tools": FUNCTIONS, "input": [user("one"), *first["output"], *outputs(first)]}
        asked = asked | {"instructions": "be brief"}
        if follows:
            asked |= {"input": outputs(first), "previous_response_id": first["id"]}
        second = (await s.client.post("/responses", json=asked)).json()
        assert second["output"][0]["content"][0]["text"] == "a2"
        check_books(s.voice.sampled, s.chat, 2)
        (branch,) = s.chat.branches()
    async with opened(numbered(), reads=True) as s:
        messages = [{"role": "system", "content": "be brief"}, user("one")]
        reply = (await s.ask(*messages, tools=TOOLS)).json()["choices"][0]["message"]
        told = [{"role": "tool", "tool_call_id": call["id"], "content": "42"} for call in reply["tool_calls"]]
        await s.ask(*messages, reply, *told, tools=TOOLS)
        assert s.chat.branches() == (branch,)


@played(numbered, reads=True)
async def test_a_stream_of_a_response_is_put_together_to_the_response(s: Session) -> None:
    got = await s.client.post("/responses", json={"input": "one", "tools": FUNCTIONS, "stream": True})
    events = [json.loads(part.split("data: ")[1]) for part in got.text.split("\n\n") if part]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [events[0]["type"], events[-1]["type"]] == ["response.created", "response.completed"]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == events[-1]["response"]["output"]
    arguments = [event["delta"] for event in events if event["type"] == "response.function_call_arguments.delta"]
    assert arguments == ["{}", '{"a": 1}']
    assert s.trained == 3


@pytest.mark.parametrize(
    ("more", "name"),
    [
        ({"previous_response_id": "resp_7"}, "previous_response_id"),
        ({"input": [{"type": "computer_call"}]}, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "messages[0]"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"prompt": {"id": "x"}}, "prompt"),
        ({"background": True}, "background"),
        ({"conversation": "c"}, "conversation"),
        ({"text": {"format": {"type": "grammar"}}}, "response_format"),
    ],
)
@played()
async def test_what_responses_cannot_do_here_is_refused_by_name(s: Session, more: Any, name: str) -> None:
    got = await s.client.post("/responses", json={"input": "x"} | more)
    assert (got.status_code, got.json()["error"]["param"]) == (400, name)


@played()
async def test_text_goes_on_behind_its_answer_and_other_text_is_a_branch(s: Session) -> None:
    async def complete(prompt: Any, **more: Any) -> Any:
        return (await s.client.post("/completions", json={"prompt": prompt, **more})).json()["choices"][0]

    first = await complete("<|im_start|>once")
    assert (first["text"], first["finish_reason"]) == ("a1", "stop")
    await complete(f"<|im_start|>once{first['text']}<|im_end|>\n<|im_start|>more")
    await complete(f"<|im_start|>once{first['text']} without its end")
    await complete([5, 6, 7])
    cut = await complete("long", max_tokens=1)
    await complete("long" + cut["text"] + "er")
    assert [turn.parent for turn in s.chat.episode.turns] == [None, 0, None, None, None, 4]
    check_books(s.voice.sampled, s.chat, 6)


@pytest.mark.parametrize("prompt", ["", [], ["a", "b"], [[1], [2]], [-1], [1 << 40], None, [True]])
@played()
async def test_a_prompt_that_is_no_text_and_no_ids_is_refused(s: Session, prompt: Any) -> None:
    got = await s.client.post("/completions", json={"prompt": prompt})
    assert (got.status_code, got.json()["error"]["param"]) == (400, "prompt")


@played()
async def test_text_is_streamed_too(s: Session) -> None:
    got = await s.client.post("/completions", json={"prompt": "x", "stream": True})
    parts = [part.removeprefix("data: ") for part in got.text.split("\n\n") if part]
    assert parts[-1] == "[DONE]"
    assert "".join(json.loads(part)["choices"][0]["text"] for part in parts[:-1]) == "a1"


@played(turns=0)
async def test_a_refused_stream_has_a_status_of_its_own_on_every_route(s: Session) -> None:
    asked = {
        "/chat/completions": {"messages": [user("x")]},
        "/responses": {"input": "x"},
        "/completions": {"prompt": "x"},
    }
    for path, body in asked.items():
        got = await s.client.post(path, json=body | {"stream": True})
        assert (got.status_code, got.headers["x-should-retry"]) == (404, "false")


@played()
async def test_reasoning_that_a_client_sends_back_is_part_of_its_answer(s: Session) -> None:
    items = [user("one"), {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
             said("two"), user("three")]  # fmt: skip
    await s.client.post("/responses", json={"input": items})
    dialog = s.chat.episode.turns[0].dialog
    assert [(message.role, message.text, message.reasoning) for message in dialog[:3]] == [
        ("user", "one", None), ("assistant", "two", "hm"), ("user", "three", None),
    ]  # fmt: skip
