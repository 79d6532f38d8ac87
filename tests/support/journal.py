"""What a learner was given, without what may differ between two runs of the same seed: times, and who sampled when."""

from __future__ import annotations

from typing import Any

from overlap.core import Batch, Group, Scored, Trajectory


def essence(batch: Batch) -> tuple[Any, ...]:
    """All of a batch that training depends on, but the versions of its tokens."""
    return batch.step, batch.version, tuple(map(_group, batch.groups)), tuple(map(_group, batch.dropped))


def _group(group: Group) -> tuple[Any, ...]:
    return group.id, group.prompt.id, tuple(map(_sample, group.samples)), group.advantages, group.dropped


def _sample(scored: Scored) -> tuple[Any, ...]:
    return scored.id, branch_essence(scored.trajectory), scored.reward, scored.failure


def branch_essence(t: Trajectory) -> tuple[Any, ...]:
    """All of a branch but times and versions: its tokens, what they were sampled behind, and its forks."""
    tokens = tuple(t.prompt_ids), tuple(t.token_ids), tuple(t.logprobs), t.mask
    return *tokens, t.text, t.finish, t.turns, t.failure, t.used, tuple(map(branch_essence, t.forks))
