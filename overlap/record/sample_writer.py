"""Writes ``trajectories.jsonl`` and ``groups.jsonl``: the samples of steps and evaluations that are kept for people.

run.samples=some   of a step the groups that ``core.kept_groups`` chooses, of an evaluation some of its problems,
                   the same ones each time; whole groups, always
            all    all of them; those of steps so that another run can train on them (``kept_samples``)
            none   no trajectories.jsonl
groups.jsonl has a row for every group and every problem, whatever is kept.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from overlap.core import kept_groups
from overlap.record.json_lines import json_line
from overlap.record.metrics import solved
from overlap.record.run_files import RunFile
from overlap.record.sample_rows import Decode, ProgramOf, SampleNotes, SampleRows
from overlap.record.timing import mean

if TYPE_CHECKING:
    from overlap.core import Batch, Group, Scored, Split
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
        groups = sorted((*batch.groups, *batch.dropped), key=lambda group: group.id)
        self._add_groups(group_row("train", batch.step, g.samples, dropped=g.dropped) for g in groups)
        if self.kept != "none":
            self.run.append(RunFile.TRAJECTORIES, self._step_lines(batch, groups, learner, at_s))

    def evaluation(self, step: int, samples: Sequence[Scored]) -> None:
        """Write the problems and the kept samples of the evaluation after ``step``; ``samples`` are all of it."""
        problems = by_group(samples)
        self._add_groups(group_row("heldout", step, problem) for problem in problems)
        if self.kept != "none":
            self.run.append(RunFile.TRAJECTORIES, self._heldout_lines(step, problems))

    def _add_groups(self, rows: Iterable[Mapping[str, Any]]) -> None:
        self.run.append(RunFile.GROUPS, [b"".join(map(json_line, rows))])

    def _step_lines(
        self, batch: Batch, groups: Sequence[Group], learner: Mapping[str, Sequence[Sequence[float]]], at_s: float
    ) -> Iterator[bytes]:
        kept, whole = kept_groups(batch) if self.kept == "some" else {}, at_s if self.kept == "all" else None
        rows = SampleRows("train", batch.step, self.decode, self.program_of, whole, self.data)
        for group in groups:
            if self.kept == "all" or group.id in kept:
                for sample, notes in notes_of_group(group, kept.get(group.id, ALL), learner, critic=self.critic):
                    yield rows.line(sample, notes)

    def _heldout_lines(self, step: int, problems: Sequence[Sequence[Scored]]) -> Iterator[bytes]:
        chosen = spread_evenly(len(problems), HELDOUT_KEPT if self.kept == "some" else len(problems))
        rows = SampleRows("heldout", step, self.decode, self.program_of)
        notes = SampleNotes(HELDOUT if self.kept == "some" else ALL)
        for index in chosen:
            for sample in problems[index]:
                yield rows.line(sample, notes)


def notes_of_group(
    group: Group, kept_as: tuple[str, ...], learner: Mapping[str, Sequence[Sequence[float]]], *, critic: bool
) -> Iterator[tuple[Scored, SampleNotes]]:
    """The samples of a group of a step, each with its notes. With a ``critic``, advantages are of tokens."""
    punishments = group.punishments or (None,) * len(group.samples)
    for sample, advantage, punishment in zip(group.samples, group.advantages, punishments, strict=True):
        learned = not (critic or group.dropped or sample.reward is None)
        yield (
            sample,
            SampleNotes(
                kept_as,
                advantage if learned else None,
                punishment if sample.reward is not None else None,
                group.dropped,
                learner.get(sample.id, ()),
            ),
        )


def spread_evenly(count: int, most: int) -> list[int]:
    """At most ``most`` of the numbers 0 to ``count - 1``, from the first on at even distances."""
    return [index * count // most for index in range(most)] if count > most else list(range(count))


def by_group(samples: Iterable[Scored]) -> list[list[Scored]]:
    """The samples of each group, in the order of their first samples."""
    groups: dict[int, list[Scored]] = {}
    for sample in samples:
        groups.setdefault(sample.trajectory.request.group, []).append(sample)
    return list(groups.values())


def group_row(split: Split, step: int, samples: Sequence[Scored], *, dropped: str = "") -> dict[str, Any]:
    """The row of one group. ``reward`` and ``reward_std`` are over the judged samples, everything else is over all."""
    request = samples[0].trajectory.request
    rewards = [sample.reward for sample in samples if sample.reward is not None]
    centre = mean(rewards) if rewards else None
    judgements = [sample.judgement for sample in samples if sample.judgement]
    verdicts = Counter(judgement.verdict for judgement in judgements)
    return {
        "split": split,
        "step": step,
        "group": request.group,
        "prompt_id": request.prompt.id,
        "samples": len(samples),
        "solved": sum(map(solved, samples)),
        "failed": len(samples) - len(rewards),
        "truncated": sum(sample.trajectory.truncated for sample in samples),
        "tokens": sum(sample.trajectory.sampled for sample in samples),
        "reward": centre,
        "reward_std": None if centre is None else math.sqrt(mean((reward - centre) ** 2 for reward in rewards)),
        "dropped": dropped,
        "verdicts": {str(verdict): count for verdict, count in sorted(verdicts.items())},
        "weak": sum(judgement.weak for judgement in judgements),
        "programs": len({sample.program_sha256 for sample in samples} - {""}),
        "learned": split == "train" and not dropped,
    }
