"""``/v1/chat/completions`` as the gateway speaks it: bodies in, answers, events and errors out. Pure.

Sampling parameters belong to the trainer: they are accepted and ignored, because clients send them by default. Fields
that would change what is sampled, or how many answers there are, are refused. Fields that would force the form of an
answer are ignored, and counted.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from overlap.core.errors import RequestRefused
from overlap.server.turn_request import Reply, RequestRules, TurnRequest, turn_request
from sandbox.serve.bounds import count_values

MODEL = "policy"
VALUES = 100_000
"""Values of a body at most, as more are read so slowly that everything else waits."""
_ONLY_NULL = (
    *("prompt_logprobs", "audio", "prediction", "web_search_options", "allowed_token_ids", "chat_template"),
    *("structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar"),
)
_REFUSED: Mapping[str, tuple[Any, ...]] = dict.fromkeys(_ONLY_NULL, (None,)) | {
    "n": (None, 1),
    "best_of": (None, 1),
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
}
"""Values without effect; any other would change how the policy is sampled, or is not implemented here."""
_LIMITS = ("max_completion_tokens", "max_tokens")
_DONE = b"data: [DONE]\n\n"
Json = Mapping[str, Any]


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
    raw = _parsed(body)
    for name, harmless in _REFUSED.items():
        if name in raw and raw[name] not in harmless:
            why = "it would change what the trainer samples, or is not spoken here; leave it out"
            raise RequestRefused(f"{name}: {why}")
    _check_template(raw.get("chat_template_kwargs"), rules)
    turn, ignored = read_chat(raw, rules)
    options = raw.get("stream_options")
    usage = bool(isinstance(options, dict) and options.get("include_usage"))
    return AskedTurn(turn, bool(raw.get("stream")), usage, ignored, hashlib.sha256(body).hexdigest())


def read_chat(raw: Json, rules: RequestRules) -> tuple[TurnRequest, tuple[str, ...]]:
    """Return the requested turn, and the parameters without effect. Raises RequestRefused."""
    stop, tools = raw.get("stop") or (), raw.get("tools") or ()
    turn = turn_request(
        raw.get("messages") or (),
        tools=() if raw.get("tool_choice") == "none" else tools,
        max_tokens=_smallest([raw[name] for name in _LIMITS if raw.get(name) is not None]),
        stop=[stop] if isinstance(stop, str) else stop,
    )
    for number, tool in enumerate(turn.offered):
        function = tool.get("function")
        if tool.get("type", "function") != "function" or not isinstance(function, dict) or not function.get("name"):
            raise RequestRefused(f"tools[{number}]: only functions with a name can be offered")
    return turn, (*_forced_form(raw.get("response_format")), *_tool_choice(raw.get("tool_choice"), turn, rules))


def _parsed(body: bytes) -> Json:
    if (values := count_values(body, VALUES)) > VALUES:
        raise RequestRefused(f"the body has {values} values; at most {VALUES} are read")
    try:
        raw = json.loads(body)
        if b"\\u" in body:  # it may spell half a character
            json.dumps(raw, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise RequestRefused(f"the body is no JSON of Unicode texts: {str(error)[:100]}") from None
    if not isinstance(raw, dict):
        raise RequestRefused("the body must be a JSON object")
    return raw


def _check_template(given: Any, rules: RequestRules) -> None:
    own = rules.template or {}
    if given is not None and (not isinstance(given, dict) or any(own.get(k, ...) != v for k, v in given.items())):
        way_out = "set the run's model.chat_template_kwargs; a request may only repeat it"
        here = json.dumps(own, default=str)  # YAML has dates
        raise RequestRefused(f"chat_template_kwargs: {json.dumps(given)[:100]} is not {here}: {way_out}")


def _forced_form(given: Any) -> tuple[str, ...]:
    """``response_format``: the parameters that are ignored. Raises RequestRefused."""
    kind = given.get("type") if isinstance(given, dict) else given
    if kind in (None, "text"):
        return ()
    if kind not in ("json_object", "json_schema"):
        raise RequestRefused(f"response_format: {str(kind)[:40]!r} is none of text, json_object, json_schema")
    return ("response_format",)


def _tool_choice(choice: Any, turn: TurnRequest, rules: RequestRules) -> tuple[str, ...]:
    """Parameters that are ignored: a call is never forced. Raises RequestRefused."""
    if not choice or choice in ("auto", "none"):
        return ()
    if isinstance(choice, dict) and choice.get("type") == "function":
        function = choice.get("function")
        name = function.get("name") if isinstance(function, dict) else choice.get("name")
        if name not in [tool["function"]["name"] for tool in turn.offered]:
            raise RequestRefused(f"tool_choice: {str(name)[:40]!r} is none of the tools")
    elif choice != "required":
        raise RequestRefused(f"tool_choice: use auto, none, required, or a function; not {str(choice)[:40]!r}")
    if not rules.calls:
        raise RequestRefused("tool_choice: no tool call is read in this run; set episode.tool_parser")
    return ("tool_choice",)


def _smallest(limits: list[Any]) -> Any:
    """The smallest of these limits, or the first that is no number; None where none is given."""
    wrong = [limit for limit in limits if type(limit) is not int]
    return wrong[0] if wrong else min(limits, default=None)


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
    for delta, finish in (*((delta, None) for delta in deltas), ({}, reply.finish)):
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        yield _event_of(head | {"choices": [choice]})
    if usage:
        yield _event_of(head | {"choices": [], "usage": _usage(reply)})
    yield _DONE


def failure(message: str, kind: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """An error as a JSON body."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def failed_event(message: str) -> bytes:
    """The end of a stream that failed."""
    return _event_of(failure(message, "not_found_error"))


def model_of(name: str) -> dict[str, Any]:
    """The model under any name that a client has for it."""
    return {"id": name, "object": "model", "created": 0, "owned_by": "overlap"}


def _event_of(body: Json) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def _head(reply: Reply, created: int, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{reply.turn.number}", "object": kind, "created": created, "model": MODEL}


def _reasoning(reply: Reply) -> dict[str, Any]:
    return {} if reply.reasoning is None else {"reasoning": reply.reasoning, "reasoning_content": reply.reasoning}


def _usage(reply: Reply) -> dict[str, int]:
    total = reply.prompt_tokens + reply.tokens
    return {"prompt_tokens": reply.prompt_tokens, "completion_tokens": reply.tokens, "total_tokens": total}
