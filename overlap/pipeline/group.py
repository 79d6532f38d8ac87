"""G scored samples of a prompt become a group: advantages, or the reason why nothing is learned from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from overlap.config.learn import LearnConfig
from overlap.core import Group, Prompt, Scored
from overlap.pipeline.advantage import EQUAL_REWARDS, estimate, estimator, none_teaches

TOO_FEW_SCORED = "too_few_scored"
ALL_TRUNCATED = "all_truncated"
DROP_REASONS = (EQUAL_REWARDS, ALL_TRUNCATED, TOO_FEW_SCORED)
MOST_PUNISHED = -0.5
"""Amount that is added to the reward of a response at the limit."""


def make_group(group: int, prompt: Prompt, samples: Sequence[Scored], learn: LearnConfig, limit: int) -> Group:
    """Order the samples, compute their advantages and decide whether the group teaches anything.

    ``limit``: tokens of the longest response. Truncated samples count in the mean and the deviation even when
    ``learn.truncated=mask`` keeps them out of the loss: a prompt on which the policy never stops is not an easy one. A
    group whose task rewards are equal teaches nothing whatever the punishments: divided by a deviation that they alone
    make, they would weigh as much as a failure (DAPO filters by accuracy, too).
    """
    ordered = tuple(sorted(samples, key=lambda s: s.trajectory.request.sample))
    rewards, punished = [s.reward for s in ordered], tuple[float, ...]()
    advantages = plain = estimate(rewards, learn)
    if learn.overlong_tokens:
        punished = tuple(overlong_punishment(s.trajectory.sampled, limit, learn.overlong_tokens) for s in ordered)
        advantages = estimate([None if r is None else r + p for r, p in zip(rewards, punished, strict=True)], learn)
    teaches_none = estimator(learn.advantage).group is not None and none_teaches(plain)
    return Group(group, prompt, ordered, advantages, _drop_reason(ordered, learn, teaches_none), punished)


def overlong_punishment(length: int, limit: int, interval: int) -> float:
    """0 for ``length`` tokens up to ``limit - interval``, then falling evenly to ``MOST_PUNISHED`` at ``limit``.

    DAPO's soft overlong punishment (Yu et al. 2025, section 3.4, eq. 13; verl ``reward_manager/dapo.py``), halved:
    DAPO's rewards are -1 and 1, those of a task here 0 to 1, so the advantages are DAPO's.
    """
    over = length - (limit - interval)
    return MOST_PUNISHED * min(1.0, over / interval) if over > 0 else 0.0


def _drop_reason(samples: Sequence[Scored], learn: LearnConfig, teaches_none: bool) -> str:
    """``teaches_none``: without punishments, all advantages are 0."""
    scored = [s for s in samples if s.reward is not None]
    if not scored or (teaches_none and len(scored) == 1):
        return TOO_FEW_SCORED
    if all(s.trajectory.truncated for s in scored) and (teaches_none or not any(_in_loss(s, learn) for s in scored)):
        return ALL_TRUNCATED
    return EQUAL_REWARDS if teaches_none else ""


def _in_loss(truncated: Scored, learn: LearnConfig) -> bool:
    """True when a truncated sample is learned from; the last token of each of its branches is not if it bootstraps."""
    match learn.truncated:
        case "mask":
            return False
        case "zero":
            return True
        case "bootstrap":
            return any(branch.trained > 1 for branch in truncated.trajectory.branches)
        case _:
            assert_never(learn.truncated)
