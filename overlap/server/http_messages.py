"""``/v1/chat/completions`` as the gateway speaks it: bodies in, answers, events and errors out. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from overlap.core.errors import RequestRefused
from overlap.server.http_fields import (
    MESSAGES,
    MODEL,
    TOOLS,
    Json,
    check_fields,
    event_of,
    failure,
    forced_form,
    listed_objects,
    parsed,
    read_stop,
    smallest_limit,
    tool_choice,
)
from overlap.server.reply import Reply
from overlap.server.turn_request import RequestRules, TurnRequest, turn_request

_DONE = b"data: [DONE]\n\n"
_LIMITS = ("max_completion_tokens", "max_tokens")


@dataclass(frozen=True, slots=True)
class AskedTurn:
    """A request's body, read. ``usage``: a stream is to end with the number of tokens. ``ignored``: parameters that
    would have forced the form of the answer. ``digest`` is equal for equal requests.
    """

    turn: TurnRequest
    stream: bool
    usage: bool
    ignored: tuple[str, ...]
    digest: str


def read_body(body: bytes, rules: RequestRules) -> AskedTurn:
    """Read a request's body. Raises RequestRefused, which names the wrong field."""
    raw = parsed(body)
    check_fields(raw, rules)
    turn, ignored = read_chat(raw, rules)
    options = raw.get("stream_options")
    usage = bool(isinstance(options, dict) and options.get("include_usage"))
    return AskedTurn(turn, bool(raw.get("stream")), usage, ignored, hashlib.sha256(body).hexdigest())


def read_chat(raw: Json, rules: RequestRules) -> tuple[TurnRequest, tuple[str, ...]]:
    """Return the requested turn, and the parameters without effect. Raises RequestRefused."""
    tools = listed_objects(raw, "tools", TOOLS)
    for number, tool in enumerate(tools):
        function = tool.get("function")
        if tool.get("type", "function") != "function" or not isinstance(function, dict) or not function.get("name"):
            raise RequestRefused(f"tools[{number}]: only functions with a name can be offered")
    ignored = (*forced_form(raw.get("response_format")), *tool_choice(raw, tools, rules))
    limit = smallest_limit(raw, *_LIMITS)
    offered = () if raw.get("tool_choice") == "none" else tools
    messages = listed_objects(raw, "messages", MESSAGES)
    return turn_request(messages, tools=offered, max_tokens=limit, stop=read_stop(raw.get("stop"))), ignored


def chat_answer(reply: Reply, created: int) -> dict[str, Any]:
    """The whole answer; ``created`` is in seconds since 1970."""
    text = None if reply.calls and not reply.text else reply.text
    message = reply.message | _reasoning(reply) | {"content": text, "refusal": None}
    choice = {"index": 0, "message": message, "finish_reason": reply.finish, "logprobs": None}
    return _head(reply, created, "chat.completion") | {"choices": [choice], "usage": _usage(reply)}


def chat_events(reply: Reply, created: int, usage: bool) -> Iterator[bytes]:
    """The answer as events, all at once, in the order in which clients expect them: some read only the first tool
    call of an event.
    """
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


def failed_event(message: str) -> bytes:
    """The end of a stream that failed."""
    return event_of(failure(message, "not_found_error"))


def models() -> dict[str, Any]:
    """The list of models, with one entry."""
    return {"object": "list", "data": [model_of(MODEL)]}


def model_of(name: str) -> dict[str, Any]:
    """The model under any name that a client has for it."""
    return {"id": name, "object": "model", "created": 0, "owned_by": "overlap"}


def _head(reply: Reply, created: int, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{reply.turn.number}", "object": kind, "created": created, "model": MODEL}


def _reasoning(reply: Reply) -> dict[str, Any]:
    return {} if reply.reasoning is None else {"reasoning": reply.reasoning, "reasoning_content": reply.reasoning}


def _usage(reply: Reply) -> dict[str, int]:
    total = reply.prompt_tokens + reply.tokens
    return {"prompt_tokens": reply.prompt_tokens, "completion_tokens": reply.tokens, "total_tokens": total}
