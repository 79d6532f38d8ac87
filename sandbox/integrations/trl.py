"""TRL: a reward function for GRPOTrainer, RLOOTrainer and the asynchronous trainer.

    from sandbox.integrations.trl import code_reward
    trainer = GRPOTrainer(reward_funcs=code_reward, ...)

The tests stand in a column of the data set. What could not be judged is None, which TRL leaves out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sandbox.integrations.code_reward import CodeReward, rows_of


@dataclass(frozen=True, slots=True)
class TrlCodeReward(CodeReward):
    """The function with settings: `reward_funcs=TrlCodeReward(column="tests", share=True)`. It can be pickled."""

    @property
    def __name__(self) -> str:  # what TRL calls the reward in its logs
        return "code_reward"

    def __call__(self, completions: list[Any], **columns: Any) -> list[float | None]:
        """One reward per completion, which is a text or messages."""
        return self.rewards(zip(map(_said, completions), rows_of(columns, len(completions)), strict=True))


def code_reward(completions: list[Any], **columns: Any) -> list[float | None]:
    """1 where the program in the completion passes all tests of its row, else 0; None where it could not be judged."""
    return TrlCodeReward()(completions, **columns)


def _said(completion: Any) -> str:
    """The text of a completion; of a conversation, what the assistant said last."""
    if isinstance(completion, str):
        return completion
    said = [message.get("content") or "" for message in completion if message.get("role") == "assistant"]
    text = said[-1] if said else ""
    return text if isinstance(text, str) else "".join(part.get("text", "") for part in text)
