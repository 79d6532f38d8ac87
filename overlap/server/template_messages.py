"""Messages in the form that chat templates expect."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from overlap.server.episode_tree import ARGUMENTS, ROLES, said_in

Raw = Mapping[str, Any]


def plain_message(raw: Raw) -> dict[str, Any]:
    """A message with text, known roles, and arguments of tools as objects."""
    plain: dict[str, Any] = {"role": ROLES[raw["role"]], "content": said_in(raw)}
    plain |= {name: raw[name] for name in ("name", "tool_call_id") if raw.get(name) is not None}
    if (reasoning := raw.get("reasoning", raw.get("reasoning_content"))) is not None:
        plain["reasoning_content"] = reasoning
    if raw.get("tool_calls"):
        plain["tool_calls"] = [_plain_call(call) for call in raw["tool_calls"]]
    return plain


def _plain_call(call: Raw) -> dict[str, Any]:
    function = call["function"]
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str) and len(arguments) <= ARGUMENTS:
        with contextlib.suppress(ValueError, RecursionError):  # as it was said
            arguments = json.loads(arguments)
    found = {"type": "function", "function": {"name": function["name"], "arguments": arguments}}
    return found | ({"id": call["id"]} if call.get("id") is not None else {})


def called_oddly(messages: Sequence[Raw]) -> bool:
    """Return whether an answer has several tool calls, or arguments that are no object: the policy may do so, and some
    templates refuse it.
    """
    called = [message.get("tool_calls") or () for message in messages]
    given = (call["function"].get("arguments") for calls in called for call in calls)
    return any(len(calls) > 1 for calls in called) or not all(isinstance(found, Mapping) for found in given)


def calls_apart(messages: Sequence[Raw]) -> list[Raw]:
    """The dialog with each tool call in an answer of its own, before its result, and with arguments as an object."""
    found, waiting, head = list[Raw](), list[Raw](), dict[str, Any]()

    def called(calls: Sequence[Raw]) -> Iterator[Raw]:
        nonlocal head
        for call in calls:
            yield head | {"tool_calls": [_with_object(call)]}
            head = {"role": "assistant", "content": ""}

    for message in messages:
        if message["role"] == "tool" and waiting:
            ids = [call.get("id") for call in waiting]
            own = message.get("tool_call_id")
            found += [*called([waiting.pop(ids.index(own) if own in ids else 0)]), message]
            continue
        found += called(waiting)
        waiting = list(message.get("tool_calls") or ())
        if waiting:
            head = {name: value for name, value in message.items() if name != "tool_calls"}
        else:
            found.append(message)
    return [*found, *called(waiting)]


def _with_object(call: Raw) -> dict[str, Any]:
    arguments = call["function"]["arguments"]
    if not isinstance(arguments, Mapping):
        arguments = {"arguments": arguments}
    return {**call, "function": {**call["function"], "arguments": arguments}}
