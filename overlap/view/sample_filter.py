"""Which samples are shown: by place, by verdict, by what became of their group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from overlap.analysis.sample_file import SampleHead
from overlap.analysis.sample_reason import ACCEPTED

NO_VERDICT = "none"


@dataclass(frozen=True, slots=True)
class SampleFilter:
    """What a sample has to be; a field at its default asks for nothing."""

    split: str = ""
    step: int | None = None
    group: int | None = None
    sample: int | None = None
    problem: str = ""
    verdict: str = ""
    """A verdict, or "none" for samples that were not judged."""
    kept_as: str = ""
    program: str = ""
    """The digest of a program, as ``program_sha256`` has it."""
    failed: bool = False
    """Those that did not pass."""
    failure: bool = False
    """Those that could not be scored, by no fault of the program."""
    dropped: bool = False
    """Those whose group taught nothing."""
    weak: bool = False
    truncated: bool = False
    """Those that were cut off."""

    def of(self, heads: Iterable[SampleHead]) -> list[SampleHead]:
        """Those of ``heads``, in their order."""
        return [head for head in heads if self.matches(head.values)]

    def matches(self, head: Mapping[str, Any]) -> bool:
        """Whether the sample with these small values is asked for."""
        return (
            (self.step is None or head["step"] == self.step)
            and (self.group is None or head["group"] == self.group)
            and (self.sample is None or head["sample"] == self.sample)
            and (not self.split or head["split"] == self.split)
            and (not self.problem or head["prompt_id"] == self.problem)
            and (not self.verdict or (head["verdict"] or NO_VERDICT) == self.verdict)
            and (not self.kept_as or self.kept_as in head["kept_as"])
            and (not self.program or head["program_sha256"] == self.program)
            and not (self.failed and passed(head))
            and not (self.failure and not head["failure"])
            and not (self.dropped and not head["dropped"])
            and not (self.weak and not head["weak"])
            and not (self.truncated and not head["truncated"])
        )

    def matches_group(self, row: Mapping[str, Any]) -> bool:
        """Whether the group of this row of groups.jsonl is asked for; of a group ``failed`` asks that none is solved,
        ``verdict`` that a sample has it, and fields that only samples have ask for nothing.
        """
        return (
            (self.step is None or row["step"] == self.step)
            and (self.group is None or row["group"] == self.group)
            and (not self.split or row["split"] == self.split)
            and (not self.problem or row["prompt_id"] == self.problem)
            and (not self.verdict or self.verdict in row["verdicts"])
            and not (self.failed and row["solved"])
            and not (self.dropped and not row["dropped"])
        )


def passed(head: Mapping[str, Any]) -> bool:
    """Whether a sample passed: accepted; where the task gives rewards without a judge, a reward above 0."""
    if head["verdict"]:
        return bool(head["verdict"] == ACCEPTED)
    return head["reward"] is not None and head["reward"] > 0
