"""G scored samples of a prompt become a group: advantages, or the reason why nothing is learned from it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from overlap.core import Group, Prompt, Scored
from overlap.pipeline.shaping import Overlong, punishments

NONE = Overlong()
EQUAL_REWARDS = "equal_rewards"
TOO_FEW_SCORED = "too_few_scored"
ALL_TRUNCATED = "all_truncated"


def advantages(rewards: Sequence[float | None], *, normalize_std: bool) -> tuple[float, ...]:
    """Advantages [G] of rewards [G]: r - mean, over the standard deviation if asked for.

    GRPO (Shao et al. 2024, section 4.1.2) with the sample standard deviation (divisor G - 1), which the paper leaves
    open and verl (``compute_grpo_outcome_advantage``) and TRL (``GRPOTrainer``) take by ``torch.std``; at G = 8 the
    population form would give advantages 1.069 times as large. Without the division it is Dr. GRPO (Liu et al. 2025,
    section 3.2). ``None`` rewards count nowhere and get 0. Equal rewards give zeros.
    """
    known = [r for r in rewards if r is not None]
    if not known or max(known) == min(known):
        return (0.0,) * len(rewards)
    mean = math.fsum(known) / len(known)
    scale = 1.0
    if normalize_std:
        scale = math.sqrt(math.fsum((r - mean) ** 2 for r in known) / (len(known) - 1))
    return tuple(0.0 if r is None else (r - mean) / scale for r in rewards)


def make_group(
    group: int,
    prompt: Prompt,
    samples: Sequence[Scored],
    *,
    normalize_std: bool,
    mask_truncated: bool,
    overlong: Overlong = NONE,
) -> Group:
    """Order the samples, compute their advantages and decide whether the group teaches anything.

    Truncated samples count in the mean and the deviation even when ``mask_truncated`` keeps them out of the loss: a
    prompt on which the policy never stops is not an easy one. A group whose task rewards are equal teaches nothing
    whatever the punishments: divided by a deviation that they alone make, they would weigh as much as a failure (DAPO
    filters by accuracy, too).
    """
    ordered = tuple(sorted(samples, key=lambda s: s.trajectory.request.sample))
    punished = punishments(ordered, overlong)
    rewards = [s.reward for s in ordered]
    if punished:
        rewards = [None if r is None else r + p for r, p in zip(rewards, punished, strict=True)]
    adv = advantages(rewards, normalize_std=normalize_std)
    return Group(group, prompt, ordered, adv, _drop_reason(ordered, mask_truncated), punished)


def _drop_reason(samples: Sequence[Scored], mask_truncated: bool) -> str:
    scored = [s for s in samples if s.reward is not None]
    if len(scored) < 2:
        return TOO_FEW_SCORED
    rewards = [s.reward for s in samples if s.reward is not None]
    equal = max(rewards) == min(rewards)
    if all(s.trajectory.truncated for s in scored) and (mask_truncated or equal):
        return ALL_TRUNCATED
    return EQUAL_REWARDS if equal else ""
