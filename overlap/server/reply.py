"""An answer of the policy, in the form that the caller gets."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Literal

from overlap.server.episode_tree import Turn

ReplyFinish = Literal["stop", "length", "tool_calls"]
_CALLS = re.compile(
    r"<\|?(?:tool|function)_calls?\b|<function=|\[TOOL_CALLS\]|<\|python_tag\|>|<｜tool▁call|<\|action_start\|>|functools\["
)
"""Texts with which models begin a tool call."""


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
