"""Choice of the samples that are shown: by place, by verdict, by the outcome of their group; and the error where a run
has none such: what is near, and why it may not be there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from overlap.core.errors import ConfigError
from overlap.inspect.run_data import RunData
from overlap.inspect.sample_reason import ACCEPTED
from overlap.record.sample_file import SampleHead

_FLAGS = {"split": "--eval", "prompt_id": "--problem", "step": "--step", "group": "--group", "sample": "--sample"}


@dataclass(frozen=True, slots=True)
class SampleFilter:
    """Conditions on a sample; a field at its default sets no condition."""

    split: str = ""
    step: int | None = None
    group: int | None = None
    sample: int | None = None
    problem: str = ""
    failed: bool = False
    """Only samples that did not pass."""
    dropped: bool = False
    """Only samples whose group was not trained on."""

    def of(self, heads: Iterable[SampleHead]) -> list[SampleHead]:
        """Return the ``heads`` that match, in their order."""
        there = [head for head in heads if self._is_place_of(head.values)]
        return [head for head in there if not passed(head.values)] if self.failed else there

    def matches_group(self, row: Mapping[str, Any]) -> bool:
        """True when the group of this row of groups.jsonl meets the conditions; with ``failed`` none of its samples
        may be solved, and fields that only samples have set no condition.
        """
        return self._is_place_of(row) and not (self.failed and row["solved"])

    def _is_place_of(self, row: Mapping[str, Any]) -> bool:
        there = all(row.get(name, wanted) == wanted for name, wanted in self.places().items())
        return there and not (self.dropped and not row["dropped"])

    def places(self) -> dict[str, Any]:
        """The values that a sample must have, by their names in its row."""
        wanted = (self.split or None, self.problem or None, self.step, self.group, self.sample)
        return {name: value for name, value in zip(_FLAGS, wanted, strict=True) if value is not None}


def passed(head: Mapping[str, Any]) -> bool:
    """True when a sample passed: accepted; where the task gives rewards without a judge, a reward above 0."""
    if head["verdict"]:
        return bool(head["verdict"] == ACCEPTED)
    return head["reward"] is not None and head["reward"] > 0


def what_is_missing(run: RunData, only: SampleFilter) -> ConfigError:
    """The error for the first of the choices in ``only`` that leaves no sample."""
    heads = [head.values for head in run.samples.heads()]
    if not heads:
        none = run.config.get("run", {}).get("samples") == "none"
        why = "has no samples yet; the first come with the first step" if run.live else "has no samples"
        return ConfigError("RUN", str(run.path), "keeps no samples (run.samples=none)" if none else why)
    if only.problem and only.problem not in {row["prompt_id"] for row in (*heads, *run.group_rows)}:
        near = _near(only.problem, sorted({head["prompt_id"] for head in heads}))
        return ConfigError("--problem", only.problem, f"is no problem of this run; {near}")
    chosen: list[str] = []
    for name, wanted in only.places().items():
        left = [head for head in heads if head[name] == wanted]
        if not left:
            there = "" if name in ("split", "prompt_id") else f"; there are {_numbers(heads, name, wanted)}"
            of = f" of {', '.join(chosen)}" if chosen else ""
            return ConfigError(_FLAGS[name], wanted, f"has no kept samples{of}{there}")
        heads = left
        chosen = [f"{name} {wanted}"] if name in ("step", "group") else chosen
    why = f"none of its {len(heads):,} samples are such; leave one of the choices out"
    return ConfigError("RUN", str(run.path), why)


def _near(name: str, known: list[str]) -> str:
    near = [other for other in known if name.lower() in other.lower()] or get_close_matches(name, known, 5, 0.5)
    return f"near it: {', '.join(near[:5])}" if near else f"for instance {', '.join(known[:5])}"


def _numbers(heads: list[dict[str, Any]], name: str, wanted: int) -> str:
    """All of them, or those next to what was wanted."""
    numbers = sorted({head[name] for head in heads})
    if len(numbers) > 1 and len(numbers) == numbers[-1] - numbers[0] + 1:
        return f"{numbers[0]} to {numbers[-1]}"
    near = sorted(sorted(numbers, key=lambda number: abs(number - wanted))[:8])
    return ", ".join(map(str, near)) + (f" and {len(numbers) - 8:,} others" if len(numbers) > 8 else "")
