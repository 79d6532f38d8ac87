"""What a reward is held against, as pure functions of rewards: ``None`` counts nowhere and gets 0.

"group" and "leave_one_out" look at the samples of one prompt, "global" at those of a step. Under "gae" a reward stays
what it is: the learner's critic makes an advantage of it for each token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from overlap.config import LearnConfig
from overlap.core import Group

EQUAL_REWARDS = "equal_rewards"

Rewards = Sequence[float | None]


def of_group(rewards: Rewards, learn: LearnConfig) -> tuple[float, ...]:
    """What the samples of a prompt, with rewards [G], get before their step is complete."""
    match learn.advantage:
        case "group":
            return advantages(rewards, normalize_std=learn.normalizes)
        case "leave_one_out":
            return leave_one_out(rewards)
        case _:
            return tuple(0.0 if r is None else r for r in rewards)


def advantages(rewards: Rewards, *, normalize_std: bool) -> tuple[float, ...]:
    """Advantages [G] of rewards [G]: r - mean, over the standard deviation if asked for.

    GRPO (Shao et al. 2024, section 4.1.2) with the sample standard deviation (divisor G - 1), which the paper leaves
    open and verl (``compute_grpo_outcome_advantage``) and TRL (``GRPOTrainer``) take by ``torch.std``; at G = 8 the
    population form would give advantages 1.069 times as large. Without the division it is Dr. GRPO (Liu et al. 2025,
    section 3.2). Equal rewards give zeros.
    """
    known = [r for r in rewards if r is not None]
    if not known or max(known) == min(known):
        return (0.0,) * len(rewards)
    mean = math.fsum(known) / len(known)
    scale = 1.0
    if normalize_std:
        scale = math.sqrt(math.fsum((r - mean) ** 2 for r in known) / (len(known) - 1))
    return tuple(0.0 if r is None else (r - mean) / scale for r in rewards)


def leave_one_out(rewards: Rewards) -> tuple[float, ...]:
    """Advantages [G] of rewards [G]: r minus the mean of the others.

    RLOO (Ahmadian et al. 2024, section 3.2, after Kool et al. 2019), without a division. A reward that stands alone has
    nothing to be held against, and gets 0; equal rewards give zeros.
    """
    known = [r for r in rewards if r is not None]
    if not known or max(known) == min(known):
        return (0.0,) * len(rewards)
    total, others = math.fsum(known), len(known) - 1
    return tuple(0.0 if r is None else r - (total - r) / others for r in rewards)


def complete(groups: tuple[Group, ...], learn: LearnConfig) -> tuple[Group, ...]:
    """The groups of a step with the advantages that are known only now that all of them are.

    "global": r minus the mean of the step's scored samples, over their standard deviation, as in REINFORCE++ (Hu 2025,
    arXiv 2501.03262, eq. 8; without its KL term), with the sample form as in :func:`advantages`. Samples of dropped
    groups count in both. Where all rewards are equal the step teaches nothing, and its groups say so.
    """
    if learn.advantage != "global":
        return groups
    rewards = [
        a if s.reward is not None else None for g in groups for s, a in zip(g.samples, g.advantages, strict=True)
    ]
    found = iter(advantages(rewards, normalize_std=learn.normalizes))
    why = EQUAL_REWARDS if len({r for g in groups for r in g.rewards}) < 2 else ""  # as the task gave them
    return tuple(replace(g, advantages=tuple(next(found) for _ in g.samples), dropped=g.dropped or why) for g in groups)
