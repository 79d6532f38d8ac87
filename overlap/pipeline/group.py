"""G scored samples of a prompt become a group: advantages, or the reason why nothing is learned from it."""

from __future__ import annotations

from collections.abc import Sequence

from overlap.config import LearnConfig
from overlap.core import Group, Prompt, Scored
from overlap.pipeline.advantage import EQUAL_REWARDS, of_group

TOO_FEW_SCORED = "too_few_scored"
ALL_TRUNCATED = "all_truncated"


def make_group(group: int, prompt: Prompt, samples: Sequence[Scored], learn: LearnConfig) -> Group:
    """Order the samples, compute their advantages and decide whether the group teaches anything.

    Truncated samples count in the mean and the deviation even when ``learn.truncated=mask`` keeps them out of the
    loss: a prompt on which the policy never stops is not an easy one.
    """
    ordered = tuple(sorted(samples, key=lambda s: s.trajectory.request.sample))
    adv = of_group([s.reward for s in ordered], learn)
    return Group(group, prompt, ordered, adv, _drop_reason(ordered, adv, learn))


def _drop_reason(samples: Sequence[Scored], adv: Sequence[float], learn: LearnConfig) -> str:
    scored = [s for s in samples if s.reward is not None]
    if len(scored) < (2 if learn.within_groups else 1):
        return TOO_FEW_SCORED
    equal = learn.within_groups and not any(adv)
    if all(s.trajectory.truncated for s in scored) and (equal or not any(_in_loss(s, learn) for s in scored)):
        return ALL_TRUNCATED
    return EQUAL_REWARDS if equal else ""


def _in_loss(truncated: Scored, learn: LearnConfig) -> bool:
    """Whether a truncated sample is learned from; the last token of one that is bootstrapped is not."""
    return learn.truncated == "zero" or (learn.truncated == "bootstrap" and len(truncated.trajectory.token_ids) > 1)
