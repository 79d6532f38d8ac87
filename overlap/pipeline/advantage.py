"""Advantages: what a reward is compared with, as functions of rewards.

A sample without a reward counts nowhere and gets 0. "group" and "leave_one_out" compare the samples of one prompt,
"global" those of a step. Under "gae" a reward stays what it is: the learner's critic makes an advantage of it for each
token. Under "none" they teach nothing, and all advantages are 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Protocol

from overlap.config.import_path import import_function, trying
from overlap.config.learn import LearnConfig
from overlap.core import Group, equal_rewards

FIELD = "learn.advantage"
EQUAL_REWARDS = "equal_rewards"
NONE = "none"


class GroupAdvantage(Protocol):
    """Advantages among the samples of one prompt; ``learn.advantage=my_module:my_advantage`` names one of the user's.

    Called in the driver, once per prompt group. ``rewards`` [K], K >= 1: those of the samples that were scored, in
    their order, with the punishment of ``learn.overlong_tokens``. ``learn``: the section of the configuration.

    Returns advantages [K], finite; each holds for all tokens of its sample. A group whose advantages are all 0 (up to
    1e-9) teaches nothing: it is dropped, as one with equal rewards is ("equal_rewards").
    """

    def __call__(self, rewards: Sequence[float], learn: LearnConfig) -> Sequence[float]: ...


@dataclass(frozen=True, slots=True)
class Estimator:
    """Functions from rewards to advantages: among the rewards of a prompt (``group``), or of a step (``step``); neither
    where a critic makes advantages, or nothing does.
    """

    told: str
    """The algorithm in the words of the papers, as the plan has it."""
    group: GroupAdvantage | None = None
    step: Callable[[Sequence[float], LearnConfig], Sequence[float]] | None = None


def none_teaches(advantages: Sequence[float]) -> bool:
    """True when advantages [K] are all 0 but for rounding."""
    return equal_rewards((0.0, *advantages))


def estimate(rewards: Sequence[float | None], learn: LearnConfig) -> tuple[float, ...]:
    """Advantages of the samples of a prompt, with rewards [G], before their step is complete."""
    if learn.advantage == NONE:
        return (0.0,) * len(rewards)
    compare = estimator(learn.advantage).group
    known = [r for r in rewards if r is not None]
    made = iter(known if compare is None or not known else _checked(compare, known, learn))
    return tuple(0.0 if r is None else next(made) for r in rewards)


def standardized(rewards: Sequence[float], learn: LearnConfig) -> Sequence[float]:
    """r - mean [K], over the standard deviation if ``learn`` normalizes. Equal rewards give zeros.

    Of a prompt: GRPO (Shao et al. 2024, section 4.1.2) with the sample standard deviation (divisor K - 1), which the
    paper leaves open and verl (``compute_grpo_outcome_advantage``) and TRL (``GRPOTrainer``) take by ``torch.std``; at
    K = 8 the population form would give advantages 1.069 times as large. Without the division it is Dr. GRPO (Liu et
    al. 2025, section 3.2). Of a step: REINFORCE++ (Hu 2025, arXiv 2501.03262, eq. 8; without its KL term).
    """
    if equal_rewards(rewards):
        return (0.0,) * len(rewards)
    mean = math.fsum(rewards) / len(rewards)
    scale = 1.0
    if learn.normalizes:
        scale = math.sqrt(math.fsum((r - mean) ** 2 for r in rewards) / (len(rewards) - 1))
    return [(r - mean) / scale for r in rewards]


def leave_one_out(rewards: Sequence[float], learn: LearnConfig) -> Sequence[float]:
    """r minus the mean of the others [K].

    RLOO (Ahmadian et al. 2024, section 3.2, after Kool et al. 2019), without a division. A single reward has nothing to
    be compared with, and gets 0; equal rewards give zeros.
    """
    if equal_rewards(rewards):
        return (0.0,) * len(rewards)
    total, others = math.fsum(rewards), len(rewards) - 1
    return [r - (total - r) / others for r in rewards]


ESTIMATORS: Mapping[str, Estimator] = {
    "group": Estimator("GRPO (advantage within the prompt's group)", group=standardized),
    "leave_one_out": Estimator("RLOO (reward less the mean of the group's other samples)", group=leave_one_out),
    "global": Estimator("REINFORCE++ (advantage over the step's samples)", step=standardized),
    "gae": Estimator("PPO (advantage by a critic, GAE)"),
    NONE: Estimator("distillation (no reward, only the KL to the reference)"),
}
"""The values of ``learn.advantage``."""


@cache
def estimator(name: str) -> Estimator:
    """The entry of a value of ``learn.advantage``. Raises ConfigError for a function of the user's that cannot be
    used.
    """
    if ":" not in name:
        return ESTIMATORS[name]
    function: GroupAdvantage = import_function(FIELD, name, GroupAdvantage)
    learn = LearnConfig(advantage=name)
    for rewards in ([0.0, 1.0, 1.0, 0.5], [1.0]):
        _checked(function, rewards, learn)
    return Estimator(f"advantage by {name}", function)


def _checked(compare: GroupAdvantage, rewards: Sequence[float], learn: LearnConfig) -> Sequence[float]:
    """Its advantages. Raises ConfigError where they cannot be used."""
    if ":" not in learn.advantage:
        return compare(rewards, learn)
    with trying(FIELD, learn.advantage, GroupAdvantage):
        made = [float(advantage) for advantage in compare(rewards, learn)]
        if len(made) != len(rewards) or not all(map(math.isfinite, made)):
            raise ValueError(f"{made} for rewards={list(rewards)}, and not a finite number for each")
    return made


def complete(groups: tuple[Group, ...], learn: LearnConfig) -> tuple[Group, ...]:
    """The groups of a step with the advantages that are known only now that all of them are.

    Samples of dropped groups count in the mean and the deviation. Where all rewards are equal the step teaches nothing,
    and its groups say so.
    """
    compare = estimator(learn.advantage).step
    if compare is None:
        return groups
    known = [a for g in groups for s, a in zip(g.samples, g.advantages, strict=True) if s.reward is not None]
    made = iter(compare(known, learn) if known else ())
    why = EQUAL_REWARDS if equal_rewards([r for g in groups for r in g.rewards]) else ""  # as the task gave them
    return tuple(
        replace(
            g, advantages=tuple(0.0 if s.reward is None else next(made) for s in g.samples), dropped=g.dropped or why
        )
        for g in groups
    )
