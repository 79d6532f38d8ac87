"""A program of the openai library: ``python openai_agent.py HOW`` asks until no tool is called any more.

HOW: plain, async, stream, or chunks, which is a stream put together by hand. The tool
``twice`` doubles a number.
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


def main() -> None:
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
