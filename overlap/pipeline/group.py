"""G scored samples of a prompt become a group: advantages, or the reason why nothing is learned from it."""

from __future__ import annotations

from collections.abc import Sequence

from overlap.config import LearnConfig
from overlap.core import Group, Prompt, Scored
from overlap.pipeline.advantage import EQUAL_REWARDS, of_group
from overlap.pipeline.shaping import Overlong, punishments

NONE = Overlong()
TOO_FEW_SCORED = "too_few_scored"
ALL_TRUNCATED = "all_truncated"


def make_group(
    group: int, prompt: Prompt, samples: Sequence[Scored], learn: LearnConfig, overlong: Overlong = NONE
) -> Group:
    """Order the samples, compute their advantages and decide whether the group teaches anything.

    Truncated samples count in the mean and the deviation even when ``learn.truncated=mask`` keeps them out of the
    loss: a prompt on which the policy never stops is not an easy one. A group whose task rewards are equal teaches
    nothing whatever the punishments: divided by a deviation that they alone make, they would weigh as much as a
    failure (DAPO filters by accuracy, too).
    """
    ordered = tuple(sorted(samples, key=lambda s: s.trajectory.request.sample))
    punished = punishments(ordered, overlong)
    rewards = [s.reward for s in ordered]
    if punished:
        rewards = [None if r is None else r + p for r, p in zip(rewards, punished, strict=True)]
    return Group(group, prompt, ordered, of_group(rewards, learn), _drop_reason(ordered, learn), punished)


def _drop_reason(samples: Sequence[Scored], learn: LearnConfig) -> str:
    scored = [s for s in samples if s.reward is not None]
    if len(scored) < (2 if learn.within_groups else 1):
        return TOO_FEW_SCORED
    rewards = [s.reward for s in samples if s.reward is not None]
    equal = learn.within_groups and max(rewards) == min(rewards)
    if all(s.trajectory.truncated for s in scored) and (equal or not any(_in_loss(s, learn) for s in scored)):
        return ALL_TRUNCATED
    return EQUAL_REWARDS if equal else ""


def _in_loss(truncated: Scored, learn: LearnConfig) -> bool:
    """Whether a truncated sample is learned from; the last token of one that is bootstrapped is not."""
    return learn.truncated == "zero" or (learn.truncated == "bootstrap" and truncated.trajectory.sampled > 1)
