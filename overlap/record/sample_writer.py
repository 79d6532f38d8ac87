"""Writes ``trajectories.jsonl`` and ``groups.jsonl``: the samples of steps and evaluations that are kept for people.

run.samples=some   of a step the groups that ``core.kept_groups`` chooses, of an evaluation some of its problems,
                   the same ones each time; whole groups, always
            all    all of them; those of steps so that another run can train on them (``sample_restore``)
            none   no trajectories.jsonl
groups.jsonl has a row for every group and every problem, whatever is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from overlap.core import kept_groups
from overlap.record.group_rows import by_group, heldout_group_rows, step_group_rows
from overlap.record.sample_rows import Decode, ProgramOf, SampleNotes, SampleRows, notes_of_group

if TYPE_CHECKING:
    from overlap.core import Batch, Scored
    from overlap.record.rundir import RunDir

HELDOUT_KEPT = 16
"""Problems of an evaluation that are kept at most, spread evenly over all of them."""
ALL, HELDOUT = ("all",), ("heldout",)


@dataclass(frozen=True, slots=True)
class SampleWriter:
    """Writer of one run. Its methods block on the disk; a file that cannot be written ends no run
    (``RunDir.failures``)."""

    run: RunDir
    decode: Decode
    program_of: ProgramOf
    kept: Literal["some", "all", "none"] = "some"
    critic: bool = False
    """True when the learner's critic makes advantages of rewards."""

    data: str = ""
    """The digest of the prompts, for rows from which another run trains."""

    def step(self, batch: Batch, learner: Mapping[str, Sequence[Sequence[float]]], at_s: float = 0.0) -> None:
        """Write the groups and the kept samples of a step that was trained on at ``at_s``. ``learner``: the learner's
        log-probs, by sample.
        """
        self.run.add_groups(step_group_rows(batch))
        if self.kept != "none":
            self.run.add_samples(self._step_lines(batch, learner, at_s))

    def evaluation(self, step: int, samples: Sequence[Scored]) -> None:
        """Write the problems and the kept samples of the evaluation after ``step``; ``samples`` are all of it."""
        self.run.add_groups(heldout_group_rows(step, samples))
        if self.kept != "none":
            self.run.add_samples(self._heldout_lines(step, samples))

    def _step_lines(
        self, batch: Batch, learner: Mapping[str, Sequence[Sequence[float]]], at_s: float
    ) -> Iterator[bytes]:
        kept, whole = kept_groups(batch) if self.kept == "some" else {}, at_s if self.kept == "all" else None
        rows = SampleRows("train", batch.step, self.decode, self.program_of, whole, self.data)
        for group in sorted((*batch.groups, *batch.dropped), key=lambda group: group.id):
            if self.kept == "all" or group.id in kept:
                for sample, notes in notes_of_group(group, kept.get(group.id, ALL), learner, critic=self.critic):
                    yield rows.line(sample, notes)

    def _heldout_lines(self, step: int, samples: Sequence[Scored]) -> Iterator[bytes]:
        problems = by_group(samples)
        chosen = spread_evenly(len(problems), HELDOUT_KEPT if self.kept == "some" else len(problems))
        rows = SampleRows("heldout", step, self.decode, self.program_of)
        notes = SampleNotes(HELDOUT if self.kept == "some" else ALL)
        for index in chosen:
            for sample in problems[index]:
                yield rows.line(sample, notes)


def spread_evenly(count: int, most: int) -> list[int]:
    """At most ``most`` of the numbers 0 to ``count - 1``, from the first on at even distances."""
    return [index * count // most for index in range(most)] if count > most else list(range(count))
