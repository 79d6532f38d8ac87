"""Groups of a step that are kept whole for people to look at, with the log-probs of both sides.

best      the highest mean reward
worst     the lowest mean reward
mixed     the rewards that differ most: for rewards 0 and 1, the pass rate nearest to one half
longest   the most sampled tokens
failed    the most samples that could not be judged

A group is kept for every reason that it has. Of two that are equal the earlier one is kept, as "worst" the later one.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter
from statistics import fmean, pvariance

from overlap.core.nouns import Batch, Group
from overlap.core.tolerance import equal_rewards

KEPT_BYTES = 3 << 20
"""Approximate bytes of samples that are kept of a step. At least one group is kept, however large."""
TOKEN_BYTES, SAMPLE_BYTES = 20, 4096
"""About what a row takes for each token (id, two log-probs, text) and for everything else."""
BY_INTEREST = ("mixed", "failed", "worst", "best", "longest")
"""Kinds of groups: where not all groups fit, they are left out from the end of this list."""


def kept_groups(batch: Batch) -> dict[int, tuple[str, ...]]:
    """The groups to keep, by id and in the order of ids, each with its reasons; a function of the batch alone.

    They are taken in the order of ``BY_INTEREST``, and one that would exceed ``KEPT_BYTES`` is left out.
    """
    groups = sorted((*batch.groups, *batch.dropped), key=lambda group: group.id)
    chosen = _chosen(groups)
    kept, room = set[int](), KEPT_BYTES
    for reason in BY_INTEREST:
        group = chosen.get(reason)
        if group is None or group.id in kept:
            continue
        size = kept_size(group)
        if size <= room or not kept:
            kept.add(group.id)
            room -= size
    return {
        group.id: tuple(reason for reason in BY_INTEREST if (one := chosen.get(reason)) and one.id == group.id)
        for group in groups
        if group.id in kept
    }


def kept_size(group: Group) -> int:
    """About the bytes that the rows of a group take."""
    branches = [branch for sample in group.samples for branch in sample.trajectory.branches]
    tokens = sum(len(branch.token_ids) + len(branch.prompt_ids) for branch in branches)
    return TOKEN_BYTES * tokens + SAMPLE_BYTES * len(group.samples)


def _chosen(groups: list[Group]) -> dict[str, Group]:
    """The group of each reason, the first of those with the highest value; a reason that no group has is left out."""
    rated = [(group, group.rewards) for group in groups]
    judged = [(group, rewards) for group, rewards in rated if rewards]
    values: dict[str, Iterable[tuple[Group, float]]] = {
        "mixed": ((group, pvariance(rewards)) for group, rewards in judged if not equal_rewards(rewards)),
        "failed": ((group, lost) for group, rewards in rated if (lost := len(group.samples) - len(rewards))),
        "worst": ((group, -fmean(rewards)) for group, rewards in reversed(judged)),
        "best": ((group, fmean(rewards)) for group, rewards in judged),
        "longest": ((group, sum(s.trajectory.sampled for s in group.samples)) for group in groups),
    }
    found = {reason: max(valued, key=itemgetter(1), default=None) for reason, valued in values.items()}
    return {reason: best[0] for reason, best in found.items() if best}
