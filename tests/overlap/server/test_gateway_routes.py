"""What requests may ask for, and by which route."""

from __future__ import annotations

import re
from datetime import date
from typing import Any

import pytest
from chats import said, user
from gateways import CHAT, TOOLS, Session, opened, played

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
        ({"response_format": {"type": "text"}}, RequestRules(), None),
        (FORCED, RequestRules(), ""),
        ({"tools": TOOLS, "tool_choice": "required"}, RequestRules(), ""),
        (FORCED, RequestRules(calls=False), "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "required"}, RequestRules(calls=False), "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "auto"}, RequestRules(calls=False), None),
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
async def test_the_model_is_there_under_any_name(s: Session) -> None:
    got = await s.client.get("/models/openai/gpt")
    assert (got.status_code, got.json()["id"]) == (200, "openai/gpt")


@pytest.mark.parametrize(
    ("path", "instead"),
    [
        ("/responses", r': .*set_default_openai_api\("chat_completions"\)'),
        ("/completions", ": send the prompt as messages"),
        ("/models", "$"),
        ("/sessions/1/reward", "$"),
    ],
)
@played()
async def test_another_route_of_openai_is_refused_with_what_makes_its_client_use_chat(
    s: Session, path: str, instead: str
) -> None:
    got = await s.client.post(path, json={"input": "x", "prompt": "x"})
    error = got.json()["error"]
    assert (got.status_code, error["type"], got.headers["x-should-retry"]) == (404, "not_found_error", "false")
    assert re.search(
        rf"no POST /v1{path}, only POST /v1/chat/completions and GET /v1/models{instead}", error["message"]
    )
    assert s.chat.used.refused == {"route": 1}


@played()
async def test_reasoning_that_a_client_sends_back_is_part_of_its_answer(s: Session) -> None:
    await s.ask(user("one"), said("two", reasoning_content="hm"), user("three"))
    dialog = s.chat.episode.turns[0].dialog
    assert [(message.role, message.text, message.reasoning) for message in dialog[:3]] == [
        ("user", "one", None), ("assistant", "two", "hm"), ("user", "three", None),
    ]  # fmt: skip
