"""An answer of the policy, as those who asked for it get it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from overlap.server.episode_tree import Turn

ReplyFinish = Literal["stop", "length", "tool_calls"]


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
