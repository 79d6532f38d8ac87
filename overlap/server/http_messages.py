"""``/v1/chat/completions`` and ``/v1/completions`` as the gateway speaks them: fields in, bodies out. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from overlap.errors import RequestRefused
from overlap.server.http_fields import (
    MESSAGES,
    MODEL,
    TOOLS,
    Dialect,
    Json,
    event_of,
    failure,
    forced_form,
    listed_objects,
    read_stop,
    smallest_limit,
    tool_choice,
)
from overlap.server.reply import Reply
from overlap.server.turn_request import Messages, RequestRules, TurnRequest, text_request, turn_request

_DONE = b"data: [DONE]\n\n"
_LIMITS = ("max_completion_tokens", "max_tokens")


def _read_chat(raw: Json, rules: RequestRules, by_id: Mapping[str, Messages]) -> tuple[TurnRequest, tuple[str, ...]]:
    tools = listed_objects(raw, "tools", TOOLS)
    for number, tool in enumerate(tools):
        function = tool.get("function")
        if tool.get("type", "function") != "function" or not isinstance(function, dict) or not function.get("name"):
            raise RequestRefused(f"tools[{number}]: only functions with a name can be offered")
    ignored = (*forced_form(raw.get("response_format"), "response_format", rules), *tool_choice(raw, tools, rules))
    limit = smallest_limit(raw, *_LIMITS)
    offered = () if raw.get("tool_choice") == "none" else tools
    messages = listed_objects(raw, "messages", MESSAGES)
    return turn_request(messages, tools=offered, max_tokens=limit, stop=read_stop(raw.get("stop"))), ignored


def _chat_answer(reply: Reply, created: int) -> dict[str, Any]:
    text = None if reply.calls and not reply.text else reply.text
    message = reply.message | _reasoning(reply) | {"content": text, "refusal": None}
    choice = {"index": 0, "message": message, "finish_reason": reply.finish, "logprobs": None}
    return _head(reply, created, "chat.completion") | {"choices": [choice], "usage": _usage(reply)}


def _chat_events(reply: Reply, created: int, usage: bool) -> Iterator[bytes]:
    """All at once, in the order in which clients expect them; some read only the first tool call of an event."""
    head = _head(reply, created, "chat.completion.chunk")
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [_reasoning(reply)] if reply.reasoning else []
    deltas += [{"content": reply.text}] if reply.text else []
    deltas += [{"tool_calls": [call | {"index": n}]} for n, call in enumerate(reply.message.get("tool_calls", ()))]
    for delta in deltas:
        yield event_of(head | {"choices": [{"index": 0, "delta": delta, "finish_reason": None, "logprobs": None}]})
    yield event_of(head | {"choices": [{"index": 0, "delta": {}, "finish_reason": reply.finish, "logprobs": None}]})
    if usage:
        yield event_of(head | {"choices": [], "usage": _usage(reply)})
    yield _DONE


def _read_text(raw: Json, rules: RequestRules, by_id: Mapping[str, Messages]) -> tuple[TurnRequest, tuple[str, ...]]:
    prompt = raw.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    ids = isinstance(prompt, list) and all(type(entry) is int for entry in prompt)
    if not prompt or not (ids or isinstance(prompt, str)):
        raise RequestRefused("prompt: use one text, or one list of token ids")
    ignored = forced_form(raw.get("response_format"), "response_format", rules)
    return text_request(prompt, smallest_limit(raw, *_LIMITS), read_stop(raw.get("stop"))), ignored


def _text_choice(text: str, finish: str | None) -> dict[str, Any]:
    return {"index": 0, "text": text, "finish_reason": finish, "logprobs": None}


def _text_answer(reply: Reply, created: int) -> dict[str, Any]:
    choices = [_text_choice(reply.text, reply.finish)]
    return _head(reply, created, "text_completion") | {"choices": choices, "usage": _usage(reply)}


def _text_events(reply: Reply, created: int, usage: bool) -> Iterator[bytes]:
    head = _head(reply, created, "text_completion")
    yield event_of(head | {"choices": [_text_choice(reply.text, None)]})
    yield event_of(head | {"choices": [_text_choice("", reply.finish)]})
    if usage:
        yield event_of(head | {"choices": [], "usage": _usage(reply)})
    yield _DONE


def _failed(message: str) -> bytes:
    return event_of(failure(message, "not_found_error"))


CHAT = Dialect(_read_chat, _chat_answer, _chat_events, _failed)
TEXT = Dialect(_read_text, _text_answer, _text_events, _failed)


def models() -> dict[str, Any]:
    """The list of models, with one entry."""
    return {"object": "list", "data": [model_of(MODEL)]}


def model_of(name: str) -> dict[str, Any]:
    """The model under any name that a client has for it."""
    return {"id": name, "object": "model", "created": 0, "owned_by": "overlap"}


def _head(reply: Reply, created: int, kind: str) -> dict[str, Any]:
    short = "cmpl" if kind == "text_completion" else "chatcmpl"
    return {"id": f"{short}-{reply.turn.number}", "object": kind, "created": created, "model": MODEL}


def _reasoning(reply: Reply) -> dict[str, Any]:
    return {} if reply.reasoning is None else {"reasoning": reply.reasoning, "reasoning_content": reply.reasoning}


def _usage(reply: Reply) -> dict[str, int]:
    total = reply.prompt_tokens + reply.tokens
    return {"prompt_tokens": reply.prompt_tokens, "completion_tokens": reply.tokens, "total_tokens": total}
