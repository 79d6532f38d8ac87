"""``/v1/responses`` as the gateway speaks it: items to messages, and a reply to items and events. Pure.

    input items ──▶ messages, those of one answer together ──▶ the same tree of turns as every other route
    reply       ──▶ reasoning, message and function_call items

``previous_response_id`` stands for the dialog of that answer. Items of other kinds than text, functions and reasoning
are refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from overlap.errors import RequestRefused
from overlap.server.episode_tree import ChatMessage, text_of
from overlap.server.http_fields import (
    MESSAGES,
    MODEL,
    TOOLS,
    Dialect,
    Json,
    event_of,
    forced_form,
    listed_objects,
    tool_choice,
)
from overlap.server.reply import Reply
from overlap.server.turn_request import RequestRules, TurnRequest, turn_request


def _read(raw: Json, rules: RequestRules, said: Mapping[str, Reply]) -> tuple[TurnRequest, tuple[str, ...]]:
    if raw.get("prompt") is not None:
        raise RequestRefused("prompt: no prompts are stored here; send their text as input")
    tools = tuple(_tool(number, tool) for number, tool in enumerate(listed_objects(raw, "tools", TOOLS)))
    text = raw.get("text")
    ignored = (
        *forced_form(text.get("format") if isinstance(text, dict) else None, "response_format", rules),
        *tool_choice(raw, tools, rules),
    )
    earlier = _earlier(raw.get("previous_response_id"), said)
    messages = [*earlier, *_messages(raw.get("input"))]
    if raw.get("instructions"):
        own = {"role": "system", "content": raw["instructions"]}
        messages = [own, *messages[bool(earlier and earlier[0]["role"] == "system") :]]
    offered = () if raw.get("tool_choice") == "none" else tools
    return turn_request(messages, tools=offered, max_tokens=raw.get("max_output_tokens")), ignored


def _tool(number: int, tool: Json) -> dict[str, Any]:
    """A function as ``/v1/chat/completions`` has it; without ``strict``, which has no effect."""
    if tool.get("type") != "function" or not isinstance(tool.get("name"), str) or not tool["name"]:
        raise RequestRefused(f"tools[{number}]: only functions with a name can be offered")
    known = {name: tool[name] for name in ("name", "description", "parameters") if tool.get(name) is not None}
    return {"type": "function", "function": known}


def _messages(given: Any) -> list[dict[str, Any]]:
    """Items as messages. What an answer consisted of is one message again: reasoning, text, and then calls."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    found = list[dict[str, Any]]()
    for number, item in enumerate(listed_objects({"input": given}, "input", MESSAGES)):
        kind = item.get("type", "message")
        try:
            if kind == "message":
                _add_message(found, item)
            elif kind == "reasoning":
                found.append({"role": "assistant", "content": "", "reasoning": _thought(item)})
            elif kind == "function_call":
                _answer(found, "tool_calls")["tool_calls"].append(_call(item))
            elif kind == "function_call_output":
                text = text_of(item.get("output"))
                found.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": text})
            else:
                raise ValueError(f"items of type {str(kind)[:40]!r} are not spoken here")
        except ValueError as error:
            raise RequestRefused(f"input[{number}]: {error}") from None
    return found


def _add_message(found: list[dict[str, Any]], item: Json) -> None:
    if item.get("role") != "assistant":
        found.append({"role": item.get("role"), "content": item.get("content")})
        return
    content = item.get("content")
    _answer(found, "content")["content"] = content if isinstance(content, str) else text_of(content)


def _answer(found: list[dict[str, Any]], part: str) -> dict[str, Any]:
    """The answer that a further part belongs to: the last message, or a new one where that has ended."""
    last = found[-1] if found else {}
    goes_on = last.get("role") == "assistant" and (
        part == "tool_calls" or not (last["content"] or "tool_calls" in last)
    )
    if not goes_on:
        found.append(last := {"role": "assistant", "content": ""})
    if part == "tool_calls":
        last.setdefault("tool_calls", [])
    return last


def _call(item: Json) -> dict[str, Any]:
    function = {"name": item.get("name"), "arguments": item.get("arguments") or ""}
    return {"id": item.get("call_id"), "type": "function", "function": function}


def _thought(item: Json) -> str | None:
    """What an answer of ours thought; None for an item that says nothing, such as an encrypted one."""
    parts = item.get("content") or item.get("summary") or []
    if not isinstance(parts, list):
        raise ValueError("reasoning must be a list of parts")
    texts = [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
    return "".join(texts) if texts else None


def _earlier(id: Any, said: Mapping[str, Reply]) -> list[dict[str, Any]]:
    """The dialog up to an earlier answer, that answer included."""
    if id is None:
        return []
    reply = said.get(id) if isinstance(id, str) else None
    if reply is None:
        raise RequestRefused(f"previous_response_id: {str(id)[:40]!r} is no answer of this episode")
    return [*_raw(reply.turn.dialog[:-1]), reply.message]


def _raw(dialog: Sequence[ChatMessage]) -> Iterator[dict[str, Any]]:
    """Messages in the form of a request."""
    ids = list[str]()
    for place, message in enumerate(dialog):
        raw: dict[str, Any] = {"role": message.role, "content": message.text, "name": message.name}
        if message.role == "assistant":
            raw["reasoning"] = message.reasoning
            ids = [f"{place % 100000:05d}{number % 10000:04d}" for number in range(len(message.calls))]
            called = zip(ids, message.calls, strict=True)
            raw["tool_calls"] = [
                {"id": id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for id, call in called
            ]
        elif message.answers is not None:
            raw["tool_call_id"] = ids[message.answers]
        yield raw


def response_id(reply: Reply) -> str:
    """The name that a client has for an answer."""
    return f"resp_{reply.turn.number}"


def _response(reply: Reply, created: int, items: Sequence[Json], status: str) -> dict[str, Any]:
    cut = status == "incomplete"
    return {
        "id": response_id(reply),
        "object": "response",
        "created_at": created,
        "status": status,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "instructions": None,
        "metadata": {},
        "model": MODEL,
        "output": list(items),
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "temperature": None,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
        "truncation": "disabled",
        "usage": None if status == "in_progress" else _usage(reply),
    }


def _usage(reply: Reply) -> dict[str, Any]:
    return {
        "input_tokens": reply.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": reply.tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": reply.prompt_tokens + reply.tokens,
    }


def _items(reply: Reply) -> list[dict[str, Any]]:
    own, status = reply.turn.number, "incomplete" if reply.finish == "length" else "completed"
    found = list[dict[str, Any]]()
    if reply.reasoning:
        parts = [{"type": "reasoning_text", "text": reply.reasoning}]
        found.append({"type": "reasoning", "id": f"rs_{own}", "summary": [], "content": parts, "status": status})
    if reply.text or not reply.calls:
        part = {"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []}
        message = {"type": "message", "id": f"msg_{own}", "role": "assistant", "status": status}
        found.append(message | {"content": [part]})
    for call in reply.calls:
        told = {"call_id": call.id, "name": call.name, "arguments": call.arguments, "status": status}
        found.append({"type": "function_call", "id": f"fc_{call.id}"} | told)
    return found


def _told(reply: Reply, created: int) -> dict[str, Any]:
    return _response(reply, created, _items(reply), "incomplete" if reply.finish == "length" else "completed")


def _events(reply: Reply, created: int, usage: bool) -> Iterator[bytes]:
    """All at once, in the order in which clients expect them."""
    for number, body in enumerate(_bodies(reply, created)):
        yield event_of(body | {"sequence_number": number}, str(body["type"]))


def _bodies(reply: Reply, created: int) -> Iterator[dict[str, Any]]:
    begun = _response(reply, created, (), "in_progress")
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for index, item in enumerate(_items(reply)):
        place = {"item_id": item["id"], "output_index": index}
        kind = str(item["type"])
        empty: Json = {"arguments": ""} if kind == "function_call" else {"content": []}
        begun_item = {**item, **empty, "status": "in_progress"}
        yield {"type": "response.output_item.added", "output_index": index, "item": begun_item}
        if kind == "function_call":
            name = "response.function_call_arguments"
            yield {"type": f"{name}.delta", "delta": item["arguments"]} | place
            yield {"type": f"{name}.done", "arguments": item["arguments"], "name": item["name"]} | place
        else:
            yield from _parts(item["content"], place, kind)
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    told = _told(reply, created)
    yield {"type": f"response.{told['status']}", "response": told}


def _parts(parts: Sequence[Json], place: Json, kind: str) -> Iterator[dict[str, Any]]:
    name = "response.output_text" if kind == "message" else "response.reasoning_text"
    more: dict[str, Any] = {"logprobs": []} if kind == "message" else {}
    for number, part in enumerate(parts):
        own = {**place, "content_index": number}
        yield {"type": "response.content_part.added", "part": {**part, "text": ""}} | own
        yield {"type": f"{name}.delta", "delta": part["text"]} | own | more
        yield {"type": f"{name}.done", "text": part["text"]} | own | more
        yield {"type": "response.content_part.done", "part": part} | own


def _failed(message: str) -> bytes:
    body = {"type": "error", "code": "not_found_error", "message": message, "param": None, "sequence_number": 0}
    return event_of(body, "error")


RESPONSES = Dialect(_read, _told, _events, _failed)
