"""What a run is made of before anything is started. Noun only: ``overlap.training.prepare`` makes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from overlap.config import Config
from overlap.core import Prompt, Task
from overlap.pipeline import Intake


@dataclass(frozen=True, slots=True)
class Prepared:
    """Everything that bad input could spoil, checked before anything is started."""

    cfg: Config
    task: Task
    policy: Path
    tokenizer: Any
    train: tuple[Prompt, ...]
    heldout: tuple[Prompt, ...]
    intakes: Mapping[str, Intake] = field(default_factory=dict)
    """By split: what the task's data gave, with the rows that are left out."""
    references: str = ""
    """What is known of the training set's reference solutions; "" where it has none."""
    critic: Path | None = None
    """The checkpoint that a critic starts from, where there is one."""
