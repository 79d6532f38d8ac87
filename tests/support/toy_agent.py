"""A task for an agent program that says two things and leaves; half of all answers are right, whatever they are."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

from overlap.core import Prompt
from overlap.task import Task, chat_prompt


class ToyAgentTask(Task):
    def prompts(self, tokenizer: Any, split: str) -> list[Prompt]:
        return [chat_prompt(tokenizer, f"p{n}", f"Say {n}.") for n in range(4)] if split == "train" else []

    def answer(self, prompt: Prompt, folder: Path, said: str) -> str:
        return f"{said}{(folder / 'left.txt').read_text()}"

    def reward(self, prompt: Prompt, answer: str, judgement: Any) -> float:
        assert answer.endswith("left")
        return float(zlib.crc32(answer.encode()) % 2)
