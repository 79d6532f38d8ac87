"""The part of ``/v1/chat/completions`` that the gateway implements: bodies in, bodies and events out. Pure.

Fields of a request are accepted or refused by name. Sampling parameters belong to the trainer: they are accepted and
ignored, because clients send them by default. Fields that would change what is sampled, or the form of an answer, are
refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from overlap.errors import RequestRefused
from overlap.server.chat import Reply

MESSAGES, TOOLS, STOPS, STOP_LETTERS = 4096, 128, 16, 200
"""Limits on one request."""
_ONLY_NULL = (
    *("prompt_logprobs", "audio", "prediction", "web_search_options", "allowed_token_ids", "chat_template"),
    *("structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar"),
)
_REFUSED: Mapping[str, tuple[Any, ...]] = dict.fromkeys(_ONLY_NULL, (None,)) | {
    "n": (None, 1),
    "best_of": (None, 1),
    "response_format": (None, {"type": "text"}),
    "logit_bias": (None, {}),
    "logprobs": (None, False, 0),
    "top_logprobs": (None, 0),
    "echo": (None, False),
    "functions": (None, []),
    "function_call": (None, "none", "auto"),
    "modalities": (None, ["text"]),
    "bad_words": (None, []),
    "stop_token_ids": (None, []),
    "ignore_eos": (None, False),
    "min_tokens": (None, 0),
    "continue_final_message": (None, False),
    "chat_template_kwargs": (None, {}),
}
"""Values without effect; any other would change how the policy is sampled, or is not implemented here."""
_CHOICES = ("auto", "none", "required")
"""For ``tool_choice``. "required" is taken for "auto": forced calls would change how the policy is sampled."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request's body. ``digest`` is equal for equal bodies, whatever the order of their keys."""

    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Mapping[str, Any], ...]
    max_tokens: Any
    stop: tuple[str, ...]
    stream: bool
    usage: bool
    digest: str


def read_body(body: bytes) -> ChatRequest:
    """Read a request's body. Raises RequestRefused, which names the wrong field."""
    try:
        raw = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestRefused(f"the body is no JSON: {str(error)[:100]}") from None
    if not isinstance(raw, dict):
        raise RequestRefused("the body must be a JSON object")
    try:
        digest = hashlib.sha256(json.dumps(raw, sort_keys=True, ensure_ascii=False).encode()).hexdigest()
    except (ValueError, RecursionError):
        raise RequestRefused("the body holds text that is no Unicode") from None
    for name, harmless in _REFUSED.items():
        if name in raw and raw[name] not in harmless:
            raise RequestRefused(
                f"{name}: it would change what the trainer samples, or is not spoken here; leave it out"
            )
    choice = raw.get("tool_choice") or "auto"
    if choice not in _CHOICES:
        raise RequestRefused(f"tool_choice: use one of {', '.join(_CHOICES)}; a named tool would have to be forced")
    tools = _listed(raw, "tools", TOOLS) if choice != "none" else ()
    for number, tool in enumerate(tools):
        function = tool.get("function")
        if tool.get("type", "function") != "function" or not isinstance(function, dict) or not function.get("name"):
            raise RequestRefused(f"tools[{number}]: only functions with a name can be offered")
    options = raw.get("stream_options") or {}
    return ChatRequest(
        _listed(raw, "messages", MESSAGES),
        tools,
        raw.get("max_completion_tokens", raw.get("max_tokens")),
        _stop(raw.get("stop")),
        bool(raw.get("stream")),
        bool(isinstance(options, dict) and options.get("include_usage")),
        digest,
    )


def _listed(raw: Mapping[str, Any], name: str, most: int) -> tuple[Mapping[str, Any], ...]:
    found = raw.get(name) or []
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise RequestRefused(f"{name}: it must be a list of objects")
    if len(found) > most:
        raise RequestRefused(f"{name}: {len(found)} of them; at most {most} are read")
    return tuple(found)


def _stop(raw: Any) -> tuple[str, ...]:
    found = [] if raw is None else [raw] if isinstance(raw, str) else raw
    if (
        not isinstance(found, list)
        or len(found) > STOPS
        or not all(isinstance(word, str) and 0 < len(word) <= STOP_LETTERS for word in found)
    ):
        raise RequestRefused(f"stop: use up to {STOPS} texts of 1 to {STOP_LETTERS} letters")
    return tuple(found)


def completion(reply: Reply, model: str, created: int) -> dict[str, Any]:
    """An answer as a JSON body."""
    text = None if reply.calls and not reply.text else reply.text
    message = reply.message | _reasoning(reply) | {"content": text, "refusal": None}
    choice = {"index": 0, "message": message, "finish_reason": reply.finish, "logprobs": None}
    return _head(reply, model, created, "chat.completion") | {"choices": [choice], "usage": _usage(reply)}


def events(reply: Reply, model: str, created: int, usage: bool) -> Iterator[bytes]:
    """An answer as server-sent events, all at once, in the order in which clients expect them."""
    head = _head(reply, model, created, "chat.completion.chunk")
    calls = [call | {"index": number} for number, call in enumerate(reply.message.get("tool_calls", ()))]
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [_reasoning(reply)] if reply.reasoning else []
    deltas += [{"content": reply.text}] if reply.text else []
    deltas += [{"tool_calls": calls}] if calls else []
    for delta in deltas:
        yield _event(head | {"choices": [{"index": 0, "delta": delta, "finish_reason": None, "logprobs": None}]})
    yield _event(head | {"choices": [{"index": 0, "delta": {}, "finish_reason": reply.finish, "logprobs": None}]})
    if usage:
        yield _event(head | {"choices": [], "usage": _usage(reply)})
    yield b"data: [DONE]\n\n"


def failure(message: str, kind: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """An error as a JSON body."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def models(model: str) -> dict[str, Any]:
    """The list of models, with one entry."""
    return {"object": "list", "data": [{"id": model, "object": "model", "created": 0, "owned_by": "overlap"}]}


def _head(reply: Reply, model: str, created: int, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{reply.turn.number}", "object": kind, "created": created, "model": model}


def _reasoning(reply: Reply) -> dict[str, Any]:
    return {} if reply.reasoning is None else {"reasoning": reply.reasoning, "reasoning_content": reply.reasoning}


def _usage(reply: Reply) -> dict[str, int]:
    total = reply.prompt_tokens + reply.tokens
    return {"prompt_tokens": reply.prompt_tokens, "completion_tokens": reply.tokens, "total_tokens": total}


def _event(body: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"
