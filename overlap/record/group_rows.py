"""The rows of ``groups.jsonl``: the outcome of each group of a step, and of each problem of an evaluation."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from overlap.record.metrics import solved
from overlap.record.timing import mean

if TYPE_CHECKING:
    from overlap.core import Batch, Scored, Split


def step_group_rows(batch: Batch) -> Iterator[dict[str, Any]]:
    """The rows of a step, by group; of dropped groups too."""
    for group in sorted((*batch.groups, *batch.dropped), key=lambda group: group.id):
        yield group_row("train", batch.step, group.samples, dropped=group.dropped)


def heldout_group_rows(step: int, samples: Iterable[Scored]) -> Iterator[dict[str, Any]]:
    """The rows of the evaluation after ``step``, by problem in the order of their first samples."""
    for group in by_group(samples):
        yield group_row("heldout", step, group)


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
