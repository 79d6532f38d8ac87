"""Generalised advantage estimation (Schulman et al. 2016, arXiv 1506.02438, eq. 11 to 16), as pure functions.

For the trained tokens of one response, in order, with V_t the value of the state *before* token t::

    d_t = r_t + V_{t+1} - V_t        A_t = d_t + lambda A_{t+1}        R_t = A_t + V_t

Behind the last one, V is 0 for a response that ended, and the critic's value for one that was cut off; A is 0. R_t is
what the critic is taught. lambda = 1 makes R_t the sum of the rewards to come (Monte Carlo) whatever the values are.
Rewards are not discounted (gamma = 1).
Policy and critic may have lambdas of their own (VC-PPO, arXiv 2503.01491).

Only trained tokens are in the recursion; tokens between two of them change nothing. Sums run in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from overlap.config.learn import CriticConfig
from overlap.learner.correction import Sampled

_FLAT = 1e-6
"""Deviation up to which advantages are all the same: dividing by it would make rounding errors of size 1."""


@dataclass(frozen=True, slots=True)
class Credit:
    """Values of T tokens, [T] each, float32 without gradient: the policy's advantages, and the critic's targets."""

    advantages: Tensor
    targets: Tensor


def gae(rewards: Sequence[float], values: Sequence[float], *, lam: float, behind: float = 0.0) -> list[float]:
    """Advantages [T] of a response from rewards [T], values [T], and the value ``behind`` the last one."""
    found, after, ahead = [0.0] * len(values), 0.0, behind
    for t in reversed(range(len(values))):
        after = rewards[t] + ahead - values[t] + lam * after
        found[t], ahead = after, values[t]
    return found


def credit(values: Tensor, behind: Tensor, sampled: Sampled, cfg: CriticConfig, costs: Tensor | None = None) -> Credit:
    """Advantages and targets [T] of a micro-batch's tokens. ``values`` are [T]; ``behind`` [R] are those behind the
    responses, 0 where one ended. ``sampled.advantages`` hold the reward of each token's response, which is that of its
    last token; one that was cut off has 0 there. ``costs`` [T] are what each token's reward is less by, such as the KL
    penalty of RLHF (Ziegler et al. 2019, arXiv 1909.08593, eq. 2).
    """
    lengths = torch.bincount(sampled.owners, minlength=sampled.responses).tolist()
    known, after, rewards = values.tolist(), behind.tolist(), sampled.advantages.tolist()
    taken = [0.0] * len(known) if costs is None else costs.tolist()
    policy: list[float] = []
    targets: list[float] = []
    start = 0
    for number, length in enumerate(lengths):
        v = known[start : start + length]
        r = [-cost for cost in taken[start : start + length]]
        r[-1] += rewards[start]
        taught = gae(r, v, lam=1.0, behind=after[number])
        lam = cfg.lambda_policy
        policy += taught if lam == 1 else gae(r, v, lam=lam, behind=after[number])
        targets += [a + value for a, value in zip(taught, v, strict=True)]
        start += length
    return Credit(values.new_tensor(policy), values.new_tensor(targets))


def whitened(advantages: Sequence[Tensor], total: Callable[[Tensor], Tensor] = lambda own: own) -> list[Tensor]:
    """The same, centred and divided by the standard deviation of all of them: the population form, as in OpenRLHF.

    ``total`` adds a small float64 tensor up over ranks; every rank calls it twice. Advantages that are all the same
    become 0.
    """
    wide = [a.double() for a in advantages]
    own = torch.tensor([sum(a.numel() for a in wide), sum(a.sum().item() for a in wide)], dtype=torch.float64)
    count, summed = total(own).tolist()
    mean = summed / max(1.0, count)
    squares = torch.tensor([sum((a - mean).square().sum().item() for a in wide)], dtype=torch.float64)
    deviation = math.sqrt(total(squares).item() / max(1.0, count))
    scale = 1.0 / deviation if deviation > _FLAT else 0.0
    return [((w - mean) * scale).to(a.dtype) for w, a in zip(wide, advantages, strict=True)]


def explained_variance(count: float, targets: float, squares: float, errors: float, squared_errors: float) -> float:
    """1 - Var(R - V) / Var(R) from sums over ``count`` tokens: of R, R^2, R - V and (R - V)^2; 0 for a constant R.

    1: the values say it all; 0: they say as much as a constant; below: less (EVPO, arXiv 2604.19485).
    """
    spread = squares / count - (targets / count) ** 2
    left = squared_errors / count - (errors / count) ** 2
    return 1.0 - left / spread if spread > _FLAT**2 else 0.0
