"""Splits a task's data into prompts that can be used and rows that cannot, counted by reason.

    task.prompts ──▶ [Prompt | LeftOut, ...] ──▶ PromptSplit(prompts, left_out)

One bad row never ends a run; too many do, for then the data is not what its owner thinks it is. A prompt that is too
long is not bad: how long one may be is ``model.prompt_tokens``, the caller's own choice, so it is counted apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from overlap.core import LeftOut, Prompt
from overlap.core.errors import ConfigError, one_line

TOO_LONG = "prompt too long"
BAD_SHARE = 0.05
"""Largest share of a split's rows that may be unusable. A long prompt is no bad row."""
_SHOWN = 200
"""Characters of a reason's first row that one line shows."""


@dataclass(frozen=True, slots=True)
class PromptSplit:
    """One split of a task's data: what is used, and every row that is not."""

    prompts: tuple[Prompt, ...] = ()
    left_out: tuple[LeftOut, ...] = ()

    @property
    def rows(self) -> int:
        """All rows that were read."""
        return len(self.prompts) + len(self.left_out)

    @property
    def bad(self) -> int:
        """Number of rows that no run could use."""
        return sum(not row.by_choice for row in self.left_out)

    def by_reason(self) -> dict[str, list[LeftOut]]:
        """Reason → its rows, most frequent reason first."""
        found: dict[str, list[LeftOut]] = {}
        for row in self.left_out:
            found.setdefault(row.reason, []).append(row)
        return dict(sorted(found.items(), key=lambda item: -len(item[1])))

    def lines(self, *, bad: bool = False) -> list[str]:
        """A line per reason for a person: "8 malformed, first problems.jsonl:3: ..."; of ``bad`` rows alone."""
        found = ((reason, rows) for reason, rows in self.by_reason().items() if not (bad and rows[0].by_choice))
        return [f"{len(rows)} {reason}, first {one_line(rows[0], _SHOWN)}" for reason, rows in found]

    def noted(self) -> list[str]:
        """A line per note on the prompts: "3 with weight, which has no effect here, first problems.jsonl:3"."""
        found: dict[str, list[Prompt]] = {}
        for prompt in self.prompts:
            for note in prompt.notes:
                found.setdefault(note, []).append(prompt)
        return [f"{len(those)} {note}, first {those[0].place or those[0].id}" for note, those in found.items()]

    def to_json(self) -> dict[str, Any]:
        """As ``summary.json`` has it: {"rows": 9, "left_out": {reason: {"count", "first", "detail"}}}."""
        reasons = {
            reason: {"count": len(rows), "first": rows[0].place, "detail": rows[0].detail}
            for reason, rows in self.by_reason().items()
        }
        return {"rows": self.rows, "left_out": reasons}


def filter_prompts(entries: Sequence[Prompt | LeftOut], prompt_tokens: int) -> PromptSplit:
    """Sift what ``Task.prompts`` gave. ``prompt_tokens`` is the longest prompt, in tokens."""
    prompts: list[Prompt] = []
    left_out: list[LeftOut] = []
    for entry in entries:
        if isinstance(entry, LeftOut):
            left_out.append(entry)
        elif (length := len(entry.token_ids)) > prompt_tokens:
            place = entry.place or entry.id
            left_out.append(LeftOut(place, TOO_LONG, f"{length} tokens, model.prompt_tokens={prompt_tokens}", True))
        else:
            prompts.append(entry)
    return PromptSplit(tuple(prompts), tuple(left_out))


def check_splits(splits: Mapping[str, PromptSplit], train: str) -> None:
    """Raise ConfigError when more than ``BAD_SHARE`` of a split's rows are bad, or there is nothing to train on.

    One bad row alone never stops a run. Bad rows of "train" are a share of all rows, for a task
    may hold a part of the same file out. ``train`` is ``data.train``, for the message.
    """
    everything = sum(found.rows for found in splits.values())
    for split, found in splits.items():
        bad, rows = found.bad, everything if split == "train" else found.rows
        if bad > BAD_SHARE * rows and bad > 1:
            reasons = "; ".join(found.lines(bad=True))
            way_out = f"cannot be used, and {BAD_SHARE:.0%} may be bad: {reasons}; repair them or take them out"
            raise ConfigError(f"data.{split}", f"{bad} of {rows} rows", way_out)
    if "train" in splits and not splits["train"].prompts:
        held = sum(len(found.prompts) for split, found in splits.items() if split != "train")
        reasons = "; ".join(splits["train"].lines()) or (f"all {held} are held out" if held else "it is empty")
        raise ConfigError("data.train", train, f"gives no prompt to train on: {reasons}")
