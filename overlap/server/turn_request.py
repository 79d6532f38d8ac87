"""A turn as its caller knows it: the request, read and checked, and the answer. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

from overlap.core import shortened
from overlap.core.errors import ContextFull, EpisodeError, RequestRefused
from overlap.server.episode_tree import ChatMessage, Turn, canonical, message_of

Messages = Sequence[Mapping[str, Any]]
MESSAGES, TOOLS, STOPS, STOP_CHARACTERS = 4096, 128, 16, 200
"""Limits on one request."""
ReplyFinish = Literal["stop", "length", "tool_calls"]
_CALLS = re.compile(
    r"<\|?(?:tool|function)_calls?\b|<function=|\[TOOL_CALLS\]|<\|python_tag\|>|<｜tool▁call|<\|action_start\|>|functools\["
)
"""Texts with which models begin a tool call."""


@dataclass(frozen=True, slots=True)
class RequestRules:
    """Rules for requests: ``calls`` is true where tool calls are read; ``template`` is the run's
    ``model.chat_template_kwargs``.
    """

    calls: bool = True
    template: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """A request for a turn. ``dialog`` and ``tools`` are ``messages`` and ``offered`` in the form that is compared."""

    messages: Messages
    offered: Messages
    dialog: tuple[ChatMessage, ...]
    tools: str
    max_tokens: int | None
    stop: tuple[str, ...]
    prefill: str = ""

    @property
    def characters(self) -> int:
        """Number of characters to render."""
        return characters_of(self.dialog) + len(self.tools) + len(self.prefill)


def characters_of(dialog: Sequence[ChatMessage]) -> int:
    """Number of characters in these messages."""
    return sum(
        len(message.text)
        + len(message.reasoning or "")
        + sum(len(call.name) + len(call.arguments) for call in message.calls)
        for message in dialog
    )


def turn_request(
    messages: Any, *, tools: Any = (), max_tokens: Any = None, stop: Any = (), prefill: Any = ""
) -> TurnRequest:
    """Read what a turn is asked for by. Raises RequestRefused, with the name of what is wrong: a text in place of a
    list would be read letter by letter.
    """
    with _refusing("tools"):
        if not _is_list(tools, TOOLS) or not all(isinstance(tool, Mapping) for tool in tools):
            raise ValueError(f"use a list of mappings, as /v1/chat/completions has them, at most {TOOLS}")
        compared = canonical(list(tools))
    with _refusing("max_tokens"):
        if max_tokens is not None and (type(max_tokens) is not int or max_tokens < 1):
            raise ValueError(f"{shortened(max_tokens)} is no number of tokens; use 1 or more, or None")
    with _refusing("stop"):
        if not _is_list(stop, STOPS) or not all(isinstance(s, str) and 0 < len(s) <= STOP_CHARACTERS for s in stop):
            allowed = f"up to {STOPS} of 1 to {STOP_CHARACTERS} characters, such as ['end']"
            raise ValueError(f"{shortened(stop)} is no list of texts; use {allowed}")
    with _refusing("prefill"):
        if not isinstance(prefill, str):
            raise ValueError(f"use text, not {type(prefill).__name__}")
    return TurnRequest(messages, tools, _dialog(messages), compared, max_tokens, tuple(stop), prefill)


def context_full(context: int, tokens: str) -> ContextFull:
    """The refusal of a dialog of ``tokens`` tokens, in the words that clients look for."""
    message = f"This model's maximum context length is {context} tokens. However, your messages have {tokens} tokens. "
    return ContextFull(message + "Please reduce their length.")


def parameter_of(error: EpisodeError) -> str:
    """The parameter of a request that a refusal is about: "messages[3]: ..." is about ``messages``."""
    if isinstance(error, ContextFull):
        return "context"
    name = str(error).partition(":")[0].partition("[")[0]
    return name if " " not in name else "body" if name.startswith("the body") else "messages"


@contextmanager
def _refusing(place: str) -> Iterator[None]:
    """Raise a ValueError inside as a refusal of what is at this place of a request."""
    try:
        yield
    except ValueError as error:
        raise RequestRefused(f"{place}: {error}") from None


def _is_list(value: Any, most: int) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes) and len(value) <= most


def _dialog(raw: Any) -> tuple[ChatMessage, ...]:
    with _refusing("messages"):
        if not _is_list(raw, MESSAGES):
            raise ValueError(f"use a list of them, not {type(raw).__name__}, and at most {MESSAGES}")
        if not raw:
            raise ValueError("it is empty; the policy has nothing to answer")
    found, ids = list[ChatMessage](), list[Any]()
    for number, message in enumerate(raw):
        with _refusing(f"messages[{number}]"):
            if not isinstance(message, Mapping):
                hint = "; a reply's is reply.message" if isinstance(message, Reply) else ""
                raise ValueError(f"use a mapping, not {type(message).__name__}{hint}")
            read = message_of(message)
        if read.role == "assistant":
            ids = [call.get("id") for call in message.get("tool_calls") or ()]
        elif read.role == "tool" and message.get("tool_call_id") in ids:
            read = replace(read, answers=ids.index(message["tool_call_id"]))
        found.append(read)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool by the policy. ``arguments`` is its text, JSON if the policy wrote JSON."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer of the policy: ``tokens`` sampled behind ``prompt_tokens``. ``turn`` is its turn in the tree."""

    text: str
    reasoning: str | None
    calls: tuple[ToolCall, ...]
    finish: ReplyFinish
    prompt_tokens: int
    tokens: int
    turn: Turn

    @property
    def message(self) -> dict[str, Any]:
        """The answer as a message, to be appended to the messages of the next turn."""
        found: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.reasoning is not None:
            found["reasoning_content"] = self.reasoning
        if self.calls:
            calls = [(call.id, {"name": call.name, "arguments": call.arguments}) for call in self.calls]
            found["tool_calls"] = [{"id": id, "type": "function", "function": function} for id, function in calls]
        return found


def holds_call(text: str, tools: str) -> bool:
    """Return whether an answer's text looks like a call of one of these tools (JSON), in any of the usual forms."""
    if _CALLS.search(text):
        return True
    called = "|".join(re.escape(str((tool.get("function") or tool).get("name"))) for tool in json.loads(tools))
    forms = (rf'"name"\s*:\s*"(?:{called})"', rf"\bfunctions\.(?:{called})\b", rf'<invoke name="(?:{called})"')
    return bool(
        re.search("|".join(forms), text) or re.match(rf"\s*\[?\s*(?:{called})\(.*\)\s*\]?\s*\Z", text, re.DOTALL)
    )
