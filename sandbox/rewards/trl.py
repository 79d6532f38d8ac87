"""TRL: a reward function for GRPOTrainer, RLOOTrainer and the asynchronous trainer.

    from sandbox.rewards.trl import code_reward
    trainer = GRPOTrainer(reward_funcs=code_reward, ...)

A column of the data set holds the tests. What could not be judged is None, which TRL leaves out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sandbox.core.plain import plain_value
from sandbox.rewards.code_reward import CodeReward


@dataclass(frozen=True, slots=True)
class TrlCodeReward:
    """The function with settings: `reward_funcs=TrlCodeReward(CodeReward(column="tests", share=True))`. It can be
    pickled.
    """

    how: CodeReward = field(default_factory=CodeReward)

    @property
    def __name__(self) -> str:  # what TRL calls the reward in its logs
        return "code_reward"

    def __call__(self, completions: list[Any], **columns: Any) -> list[float | None]:
        """Return one reward per completion, which is a text or messages."""
        return self.how.rewards(zip(map(_said, completions), _rows_of(columns, len(completions)), strict=True))


def code_reward(completions: list[Any], **columns: Any) -> list[float | None]:
    """1 where the program in the completion passes all tests of its row, else 0; None where it could not be judged."""
    return TrlCodeReward()(completions, **columns)


def _rows_of(columns: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """The rows of a batch whose columns are lists of ``count`` values; what is no such list is no column."""
    found = {name: values if isinstance(values, list) else plain_value(values) for name, values in columns.items()}
    lists = {name: values for name, values in found.items() if isinstance(values, list) and len(values) == count}
    return [{name: values[number] for name, values in lists.items()} for number in range(count)]


def _said(completion: Any) -> str:
    """The text of a completion; of a conversation, what the assistant said last."""
    if isinstance(completion, str):
        return completion
    said = [message.get("content") or "" for message in completion if message.get("role") == "assistant"]
    text = said[-1] if said else ""
    return text if isinstance(text, str) else "".join(part.get("text", "") for part in text)
