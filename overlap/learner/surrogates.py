"""Surrogates: what is minimised in the place of the expected reward, as pure functions of tensors [T], no padding.

Per token of a response i with |i| tokens, advantage A, log-prob ``new`` and the log-prob ``anchor`` that it is held to,
with r = exp(new - anchor) and sg for "no gradient"::

    ppo     max(-A r, -A clip(r, 1 - low, 1 + high))
    pg      -A r, whose gradient is that of -A new for anchor = sg(new)
    cispo   -A sg(min(r, 1 + high)) new
    gspo    max(-A s, -A clip(s, 1 - low, 1 + high)), s = sg(exp(sum over i of log r / |i|)) exp(new - sg(new))

With anchor = sg(new), as in the only update of a step, all of them have the gradient of -A new.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, assert_never

import torch
from torch import Tensor

from overlap.learner.correction import Sampled, ratios

Surrogate = Literal["ppo", "pg", "cispo", "gspo"]

CLIPS: Mapping[Surrogate, tuple[float, float]] = {
    "ppo": (0.2, 0.28),
    "pg": (0.0, 0.0),
    "cispo": (1.0, 4.0),
    "gspo": (3e-4, 4e-4),
}
"""Published ``low`` and ``high``: DAPO's (Yu et al. 2025, section 4.1), TRL's for ScaleRL (ratios up to 5), GSPO's
(Zheng et al. 2025, section 5.1). "pg" reads none, "cispo" no ``low``."""


def surrogate(
    name: Surrogate, new: Tensor, anchor: Tensor, sampled: Sampled, *, low: float | None, high: float | None
) -> tuple[Tensor, Tensor]:
    """Losses [T] by the surrogate of that name, and whether its clip decided [T] (bool).

    ``new`` and ``anchor`` are [T]; ``anchor`` carries no gradient. None for a bound is the one in ``CLIPS``.
    """
    published = CLIPS[name]
    low, high = published[0] if low is None else low, published[1] if high is None else high
    match name:
        case "ppo":
            return clipped(ratios(new - anchor), sampled.advantages, low=low, high=high)
        case "pg":
            return -sampled.advantages * ratios(new - anchor), torch.zeros_like(new, dtype=torch.bool)
        case "cispo":
            return weighted(new, anchor, sampled.advantages, high=high)
        case "gspo":
            return clipped(response_ratios(new, anchor, sampled), sampled.advantages, low=low, high=high)
        case _:
            assert_never(name)


def clipped(ratio: Tensor, advantages: Tensor, *, low: float, high: float) -> tuple[Tensor, Tensor]:
    """PPO losses [T] and whether the clip decided [T] (bool): Schulman et al. 2017, eq. 7, with two bounds.

    The larger of the two losses is taken, so that the clip bounds what an update can gain from a token and never
    what it can lose.
    """
    plain = -advantages * ratio
    held = -advantages * ratio.clamp(1.0 - low, 1.0 + high)
    return torch.maximum(plain, held), held > plain


def weighted(new: Tensor, anchor: Tensor, advantages: Tensor, *, high: float) -> tuple[Tensor, Tensor]:
    """CISPO losses [T] and whether the ratio was cut [T] (bool).

    MiniMax-M1 (2025, arXiv 2506.13585, eq. 4 and 5), without a lower bound, as they trained it; TRL ``GRPOTrainer``
    with ``loss_type="cispo"``. The clip bounds the weight of a token and never takes its gradient away. ScaleRL (Khatri
    et al. 2025) has the policy that sampled as ``anchor``: that is "pg" with the correction "tis".
    """
    ratio = ratios(new.detach() - anchor)
    return -advantages * ratio.clamp(max=1.0 + high) * new, ratio > 1.0 + high


def response_ratios(new: Tensor, anchor: Tensor, sampled: Sampled) -> Tensor:
    """GSPO's ratios [T]: the value of each is the geometric mean over its response, the gradient that of its token.

    GSPO (Zheng et al. 2025, arXiv 2507.18071, eq. 7) in its form for tokens (eq. 14), whose gradient is the same where
    the tokens of a response have one advantage, and which also has one where they do not. Every token counts as one,
    as in the other surrogates (TRL with ``importance_sampling_level="sequence"`` and its own loss, DAPO); the paper's
    mean over responses would give those of short responses more weight. Sums are in float64.
    """
    moved = torch.zeros(sampled.responses, dtype=torch.float64, device=new.device)
    moved.index_add_(0, sampled.owners, (new.detach() - anchor).double())
    mean = moved / torch.bincount(sampled.owners, minlength=sampled.responses)
    return ratios(new - new.detach() + mean.to(new.dtype)[sampled.owners])
