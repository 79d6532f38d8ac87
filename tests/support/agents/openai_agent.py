"""A program of the openai library: ``python openai_agent.py HOW`` asks until no tool is called any more.

HOW: plain, async, stream, or chunks, which is a stream put together by hand; or by ``/v1/responses``: items, which
sends the whole dialog, following, which names the answer before, or items-stream. The tool ``twice`` doubles a number.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import openai

SCHEMA = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
TOOLS: Any = [{"type": "function", "function": {"name": "twice", "description": "", "parameters": SCHEMA}}]


def plain(messages: list[Any]) -> tuple[Any, str]:
    choice = openai.OpenAI().chat.completions.create(model="policy", messages=messages, tools=TOOLS).choices[0]
    return choice.message, choice.finish_reason


def in_a_loop(messages: list[Any]) -> tuple[Any, str]:
    async def ask() -> tuple[Any, str]:
        async with openai.AsyncOpenAI() as client:
            found = await client.chat.completions.create(model="policy", messages=messages, tools=TOOLS)
        return found.choices[0].message, found.choices[0].finish_reason

    return asyncio.run(ask())


def stream(messages: list[Any]) -> tuple[Any, str]:
    client = openai.OpenAI()
    with client.chat.completions.stream(model="policy", messages=messages, tools=TOOLS) as events:
        choice = events.get_final_completion().choices[0]
    return choice.message, choice.finish_reason


def chunks(messages: list[Any]) -> tuple[Any, str]:
    text, calls, finish = "", dict[int, dict[str, Any]](), ""
    client = openai.OpenAI()
    for chunk in client.chat.completions.create(model="policy", messages=messages, tools=TOOLS, stream=True):
        (choice,) = chunk.choices
        text += choice.delta.content or ""
        for part in choice.delta.tool_calls or ():
            own = calls.setdefault(
                part.index, {"id": part.id, "type": "function", "function": {"name": "", "arguments": ""}}
            )
            own["function"]["name"] += part.function.name or ""
            own["function"]["arguments"] += part.function.arguments or ""
        finish = choice.finish_reason or finish
    message = {"role": "assistant", "content": text} | ({"tool_calls": list(calls.values())} if calls else {})
    return openai.types.chat.ChatCompletionMessage.model_validate(message), finish


def by_responses(how: str) -> None:
    """The same by ``/v1/responses``."""
    client, steps = openai.OpenAI(), list[Any]()
    tools: Any = [{"type": "function", **tool["function"]} for tool in TOOLS]
    asked: list[Any] = [{"role": "user", "content": Path("prompt.txt").read_text()}]
    given: Any = {}
    while True:
        if how == "items-stream":
            with client.responses.stream(model="policy", input=asked, tools=tools) as events:
                response: Any = events.get_final_response()
        else:
            response = client.responses.create(model="policy", input=asked, tools=tools, **given)
        calls = [item for item in response.output if item.type == "function_call"]
        called = [[call.name, json.loads(call.arguments)] for call in calls]
        steps.append([response.output_text, called, "tool_calls" if calls else "stop"])
        if not calls:
            break
        if how == "following":
            asked, given = [], {"previous_response_id": response.id}
        else:
            asked += response.output
        for call in calls:
            number = json.loads(call.arguments)["number"]
            asked.append({"type": "function_call_output", "call_id": call.call_id, "output": str(2 * number)})
    Path("answer.txt").write_text(json.dumps(steps))


def main() -> None:
    if sys.argv[1] in ("items", "items-stream", "following"):
        return by_responses(sys.argv[1])
    ask = {"plain": plain, "async": in_a_loop, "stream": stream, "chunks": chunks}[sys.argv[1]]
    messages: list[Any] = [{"role": "user", "content": Path("prompt.txt").read_text()}]
    steps = []
    while True:
        message, finish = ask(messages)
        messages.append(message)
        calls = message.tool_calls or []
        steps.append(
            [message.content or "", [[c.function.name, json.loads(c.function.arguments)] for c in calls], finish]
        )
        if not calls:
            break
        for call in calls:
            number = json.loads(call.function.arguments)["number"]
            messages.append({"role": "tool", "tool_call_id": call.id, "content": str(2 * number)})
    Path("answer.txt").write_text(json.dumps(steps))


main()
