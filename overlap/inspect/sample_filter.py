"""Choice of the samples that are shown: by place, by verdict, by the outcome of their group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from overlap.inspect.sample_reason import ACCEPTED
from overlap.record.sample_file import SampleHead


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
        return [head for head in heads if self.matches(head.values)]

    def matches(self, head: Mapping[str, Any]) -> bool:
        """True when the sample with these small values meets the conditions."""
        return (
            (self.step is None or head["step"] == self.step)
            and (self.group is None or head["group"] == self.group)
            and (self.sample is None or head["sample"] == self.sample)
            and (not self.split or head["split"] == self.split)
            and (not self.problem or head["prompt_id"] == self.problem)
            and not (self.failed and passed(head))
            and not (self.dropped and not head["dropped"])
        )

    def matches_group(self, row: Mapping[str, Any]) -> bool:
        """True when the group of this row of groups.jsonl meets the conditions; with ``failed`` none of its samples
        may be solved, and fields that only samples have set no condition.
        """
        return (
            (self.step is None or row["step"] == self.step)
            and (self.group is None or row["group"] == self.group)
            and (not self.split or row["split"] == self.split)
            and (not self.problem or row["prompt_id"] == self.problem)
            and not (self.failed and row["solved"])
            and not (self.dropped and not row["dropped"])
        )


def passed(head: Mapping[str, Any]) -> bool:
    """True when a sample passed: accepted; where the task gives rewards without a judge, a reward above 0."""
    if head["verdict"]:
        return bool(head["verdict"] == ACCEPTED)
    return head["reward"] is not None and head["reward"] > 0
