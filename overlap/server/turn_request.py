"""The request for a turn: messages, tools and options, read and checked. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from overlap.core import shortened
from overlap.core.errors import ContextFull, EpisodeError, RequestRefused
from overlap.server.episode_tree import ChatMessage, canonical, message_of

Messages = Sequence[Mapping[str, Any]]


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
    """The number of characters of what these messages say."""
    return sum(
        len(message.text)
        + len(message.reasoning or "")
        + sum(len(call.name) + len(call.arguments) for call in message.calls)
        for message in dialog
    )


def turn_request(
    messages: Any, *, tools: Any = (), max_tokens: Any = None, stop: Any = (), prefill: Any = ""
) -> TurnRequest:
    """Read what a turn is asked for by. Raises RequestRefused, with the name of what is wrong."""
    _check_options(tools, max_tokens, stop, prefill)
    dialog = _dialog(messages)
    try:
        compared = canonical(list(tools))
    except ValueError as error:
        raise RequestRefused(f"tools: {error}") from None
    return TurnRequest(messages, tools, dialog, compared, max_tokens, tuple(stop), prefill)


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


def _check_options(tools: Any, max_tokens: Any, stop: Any, prefill: Any) -> None:
    """Raises RequestRefused for a wrong type: a text in place of a list would be read letter by letter."""
    if not _is_list(tools) or not all(isinstance(tool, Mapping) for tool in tools):
        raise RequestRefused("tools: use a list of mappings, as /v1/chat/completions has them")
    if max_tokens is not None and (type(max_tokens) is not int or max_tokens < 1):
        raise RequestRefused(f"max_tokens: {shortened(max_tokens)} is no number of tokens; use 1 or more, or None")
    if not _is_list(stop) or not all(isinstance(word, str) and word for word in stop):
        raise RequestRefused(f"stop: {shortened(stop)} is no list of texts; use one, such as ['end']")
    if not isinstance(prefill, str):
        raise RequestRefused(f"prefill: use text, not {type(prefill).__name__}")


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _dialog(raw: Any) -> tuple[ChatMessage, ...]:
    if not _is_list(raw):
        raise RequestRefused(f"messages: use a list of them, not {type(raw).__name__}")
    if not raw:
        raise RequestRefused("messages: it is empty; the policy has nothing to answer")
    found, ids = list[ChatMessage](), list[Any]()
    for number, message in enumerate(raw):
        if not isinstance(message, Mapping):
            hint = "; a reply's is reply.message" if hasattr(message, "message") else ""
            raise RequestRefused(f"messages[{number}]: use a mapping, not {type(message).__name__}{hint}")
        try:
            read = message_of(message)
        except ValueError as error:
            raise RequestRefused(f"messages[{number}]: {error}") from None
        if read.role == "assistant":
            ids = [call.get("id") for call in message.get("tool_calls") or ()]
        elif read.role == "tool" and message.get("tool_call_id") in ids:
            read = replace(read, answers=ids.index(message["tool_call_id"]))
        found.append(read)
    return tuple(found)
