"""The policy loss, as pure functions of tensors [T]: one entry for each counted response token, no padding.

Per token, with the learner's log-prob ``new``, its log-prob before the step ``old`` and the engine's ``engine``::

    anchor = new for the loss "pg", old for all others
    l = w(anchor, engine) * loss(new, anchor) + kl_coef * k(new, reference) - entropy_coef * H

``loss`` is what is minimised in the place of the expected reward. Per token of a response i with |i| tokens and
advantage A, with r = exp(new - anchor) and sg for "no gradient"::

    ppo     max(-A r, -A clip(r, 1 - low, 1 + high))
    pg      -A r, whose gradient is that of -A new for anchor = sg(new)
    cispo   -A sg(min(r, 1 + high)) new
    gspo    max(-A s, -A clip(s, 1 - low, 1 + high)), s = sg(exp(sum over i of log r / |i|)) exp(new - sg(new))

With ``learn.dual_clip`` c, the loss "ppo" of a token with A < 0 is at most -c A. "ppo" is decoupled PPO (Hilton et al.
2022; AReaL, Fu et al. 2025, eq. 5) with DAPO's two bounds (Yu et al. 2025, section 3.1), "cispo" and "gspo" are
decoupled likewise, and "pg" is REINFORCE with importance weights (verl ``compute_policy_loss_reinforce``, "pure IS").

With ``kl_in="reward"`` the KL's term is not there, and the advantage in ``loss`` is less by kl_coef times what
k(anchor, reference) says of the token and of those behind it (``to_go``); under "gae" the critic's rewards
are. So ``kl_coef`` is in the units of advantages, whatever these were divided by.
``anchor`` and the weight w (``overlap.learner.correction``) carry no gradient. The loss of a mini-batch is the sum of
``l`` over the number of *all* its counted tokens, on all ranks (DAPO, section 3.3): a split changes nothing. Responses
are never split, so that holds for the ratio of a whole one, too.

With one update per batch, ``old`` is ``new`` without its gradient: ratios are 1, the gradient is that of ``-w A new``,
all losses take the same step, and no further forward pass is needed. With more updates, ``old`` is computed before
the first one, unless nothing is held to it ("pg").

The KL divergence from a reference policy is estimated by the sampled token. In the terms of Schulman 2020
(http://joschu.net/blog/kl-approx.html): a token is drawn from the policy p, which gives it the log-prob ``new``, the
reference policy q the log-prob ``reference``. With d = new - reference::

    k1   d                  unbiased, of either sign
    k3   exp(-d) - 1 + d    unbiased, never below 0

All estimate KL(p || q). Their gradients are another matter (Tang & Munos 2025, arXiv 2506.09477; Shah et al. 2025,
arXiv 2512.21852). With s = grad log p of the token, for which E[s] = 0, the expected gradient of a token is, by where
the estimate is (``learn.kl_in``)::

                 in the loss: E[grad k]                         in the reward: E[k s]
    k1   E[s] = 0, so nothing is learned                E[d s] = grad KL(p || q)
    k3   E[(1 - exp(-d)) s] = grad KL(q || p)           grad KL(p || q) - grad KL(q || p)

So k3 is used in the loss, and k1 in the reward. In the loss an estimate is not weighted by ``learn.correction``, as in
TRL and verl. In the reward it is a part of the advantage, and weighted with it.

A token also decides which tokens can follow. The KL of whole responses has the gradient E[sum over t of s_t times the
sum of d from t on]: that is ``to_go``, or GAE, and how a KL in the reward counts beside rewards. In the loss, and where
the KL alone teaches (``learn.advantage=none``), a token answers for its own d alone, which is the same with a discount
of 0: the KL of each token behind the tokens that were drawn, with far less noise. On-policy distillation takes that
(Agarwal et al. 2024, arXiv 2306.13649; Lu & Thinking Machines 2025, "On-Policy Distillation").
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Protocol

import torch
from torch import Tensor

from overlap.config.import_path import import_function, trying
from overlap.config.learn import LearnConfig
from overlap.learner.correction import LOG_RATIO_MAX, Sampled, check_column, correction, ratios, some_tokens
from overlap.learner.statistics import Statistics, landing_statistics, token_statistics

FIELD = "learn.loss"


class PolicyLoss(Protocol):
    """The loss of each token; ``learn.loss=my_module:my_loss`` names one of the user's.

    Called in the learner's ranks, for the T counted response tokens of a micro-batch, without padding. ``new`` [T]
    float32: the learner's log-probs, with gradient. ``anchor`` [T] float32, without gradient: those before the first
    update of the step, in the first update ``new`` itself. ``sampled``: what else is known of the tokens, above all
    ``sampled.advantages`` [T]. ``low`` and ``high``: ``learn.clip_low`` and ``learn.clip_high``.

    Returns losses [T], whose gradient goes through ``new``, and whether a clip decided each [T] bool, which is only
    counted. The losses are weighted by ``learn.correction``, summed, and divided by the tokens of the mini-batch; so a
    function must treat tokens one by one, or by their responses (``sampled.owners``), which are never split.
    """

    def __call__(
        self, new: Tensor, anchor: Tensor, sampled: Sampled, low: float, high: float
    ) -> tuple[Tensor, Tensor]: ...


@dataclass(frozen=True, slots=True)
class LossEntry:
    """A loss with its published bounds. ``anchored``: it needs the log-probs before the first update of a step."""

    function: PolicyLoss
    low: float = 0.2
    high: float = 0.28
    anchored: bool = True

    def __call__(
        self, new: Tensor, anchor: Tensor, sampled: Sampled, *, low: float | None = None, high: float | None = None
    ) -> tuple[Tensor, Tensor]:
        """``function``; None for a bound is the published one."""
        return self.function(
            new, anchor, sampled, self.low if low is None else low, self.high if high is None else high
        )


def ppo(new: Tensor, anchor: Tensor, sampled: Sampled, low: float, high: float) -> tuple[Tensor, Tensor]:
    """Schulman et al. 2017, eq. 7, with the two bounds of DAPO (Yu et al. 2025, section 4.1)."""
    return clipped(ratios(new - anchor), sampled.advantages, low=low, high=high)


def pg(new: Tensor, anchor: Tensor, sampled: Sampled, low: float, high: float) -> tuple[Tensor, Tensor]:
    """REINFORCE: nothing is clipped."""
    return -sampled.advantages * ratios(new - anchor), torch.zeros_like(new, dtype=torch.bool)


def cispo(new: Tensor, anchor: Tensor, sampled: Sampled, low: float, high: float) -> tuple[Tensor, Tensor]:
    """MiniMax-M1 (2025, arXiv 2506.13585, eq. 4 and 5), without a lower bound, as they trained it; TRL ``GRPOTrainer``
    with ``loss_type="cispo"``. The clip bounds the weight of a token and never takes its gradient away. ScaleRL (Khatri
    et al. 2025) has the policy that sampled as ``anchor``: that is "pg" with the correction "tis".
    """
    ratio = ratios(new.detach() - anchor)
    return -sampled.advantages * ratio.clamp(max=1.0 + high) * new, ratio > 1.0 + high


def gspo(new: Tensor, anchor: Tensor, sampled: Sampled, low: float, high: float) -> tuple[Tensor, Tensor]:
    """GSPO (Zheng et al. 2025, arXiv 2507.18071, eq. 7) in its form for tokens (eq. 14): the value of each ratio is the
    geometric mean over its response, the gradient that of its token.

    The gradient is that of eq. 7 where the tokens of a response have one advantage, and also exists where they do not.
    Every token counts as one, as in the other losses (TRL with ``importance_sampling_level="sequence"`` and its own
    loss, DAPO); the paper's mean over responses would give those of short responses more weight. Sums are in float64.
    """
    moved = torch.zeros(sampled.responses, dtype=torch.float64, device=new.device)
    moved.index_add_(0, sampled.owners, (new.detach() - anchor).double())
    mean = moved / torch.bincount(sampled.owners, minlength=sampled.responses)
    ratio = ratios(new - new.detach() + mean.to(new.dtype)[sampled.owners])
    return clipped(ratio, sampled.advantages, low=low, high=high)


def clipped(ratio: Tensor, advantages: Tensor, *, low: float, high: float) -> tuple[Tensor, Tensor]:
    """The larger of the losses [T] with and without a clip of the ratio, and whether the clip decided [T] (bool): it
    bounds what an update can gain from a token and never what it can lose.
    """
    plain = -advantages * ratio
    held = -advantages * ratio.clamp(1.0 - low, 1.0 + high)
    return torch.maximum(plain, held), held > plain


def dual_clipped(losses: Tensor, decided: Tensor, advantages: Tensor, bound: float) -> tuple[Tensor, Tensor]:
    """The losses [T], where the advantage is below 0 at most -A ``bound``, and whether a clip decided each [T] (bool).

    Dual-clip PPO (Ye et al. 2020, arXiv 1912.09729, eq. 5): a token that has become much likelier although it is bad
    has no bound under PPO's clip, and one such token can outweigh a batch. verl ``compute_policy_loss_vanilla`` has it
    with c = 3 (``clip_ratio_c``), AReaL as ``c_clip``, TRL as ``delta``.
    """
    most = -advantages * bound
    over = (advantages < 0) & (losses > most)
    return torch.where(over, most, losses), decided | over


LOSSES: Mapping[str, LossEntry] = {
    "ppo": LossEntry(ppo),
    "pg": LossEntry(pg, 0.0, 0.0, anchored=False),
    "cispo": LossEntry(cispo, 1.0, 4.0),
    "gspo": LossEntry(gspo, 3e-4, 4e-4),
}
"""The values of ``learn.loss``, with the bounds of DAPO, of TRL for ScaleRL (ratios up to 5), and of GSPO (section
5.1)."""


@cache
def policy_loss(name: str) -> LossEntry:
    """The entry of a value of ``learn.loss``. Raises ConfigError for a function of the user's that cannot be used."""
    if ":" not in name:
        return LOSSES[name]
    entry = LossEntry(import_function(FIELD, name, PolicyLoss))
    new, sampled = some_tokens()
    with trying(FIELD, name, PolicyLoss):
        losses, decided = entry(new, new.detach(), sampled)
        check_column("losses", losses, new)
        check_column("what a clip decided", decided, new, torch.bool)
        if not losses.requires_grad:
            raise ValueError("losses have no gradient")
    return entry


def k1(new: Tensor, reference: Tensor) -> Tensor:
    """new - reference [T] (verl ``kl_penalty`` "kl", TRL ``PPOTrainer`` "k1")."""
    return new - reference


def k3(new: Tensor, reference: Tensor) -> Tensor:
    """exp(-d) - 1 + d [T] with d = new - reference (verl "low_var_kl", TRL ``GRPOTrainer``), and exp(-d) held within
    what can be multiplied.
    """
    ratio = (reference - new).clamp(max=LOG_RATIO_MAX)
    return torch.exp(ratio) - ratio - 1.0


KL_ESTIMATES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {"k1": k1, "k3": k3}
"""The estimates by name."""


def to_go(values: Tensor, sampled: Sampled) -> Tensor:
    """The sum [T] over each token and those behind it in its response (REINFORCE++: Hu 2025, arXiv 2501.03262, eq. 8).
    Sums run in float64.
    """
    lengths = torch.bincount(sampled.owners, minlength=sampled.responses).tolist()
    parts = values.double().split(lengths)
    return torch.cat([part.flip(0).cumsum(0).flip(0) for part in parts]).to(values.dtype)


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """``total`` is the sum of the token losses, a scalar with gradient; ``statistics`` are for metrics."""

    total: Tensor
    statistics: tuple[Statistics, ...]


def token_loss(
    new: Tensor,
    sampled: Sampled,
    cfg: LearnConfig,
    *,
    old: Tensor | None = None,
    first: bool = True,
    reference: Tensor | None = None,
    entropy: Tensor | None = None,
) -> TokenLoss:
    """Sum of the token losses and what the metrics need. All inputs are [T], at least one token.

    ``first``: no update of the batch has been taken yet, so ``new`` is what ``old`` would be. In later ones all losses
    but "pg" need ``old``. ``reference`` is needed if ``kl_coef`` > 0, ``entropy`` (of the whole distribution, with
    gradient) if ``entropy_coef`` > 0.
    """
    old = new.detach() if first and old is None else old
    loss = policy_loss(cfg.loss)
    anchor = old if loss.anchored else new.detach()
    assert anchor is not None, f"{cfg.loss} needs the log-probs before the first update of the batch"
    kl = None
    if cfg.kl_coef:
        assert reference is not None, "kl_coef > 0 needs the reference policy's log-probs"
        kl = KL_ESTIMATES[cfg.kl_by](new if cfg.kl_in == "loss" else anchor, reference)
        sampled = rewarded(sampled, kl, cfg)
    weights = correction(cfg.correction)(anchor, sampled)
    policy, decided = loss(new, anchor, sampled, low=cfg.clip_low, high=cfg.clip_high)
    if cfg.dual_clip is not None:
        policy, decided = dual_clipped(policy, decided, sampled.advantages, cfg.dual_clip)
    losses = weights.values * policy
    found = token_statistics(new.detach(), anchor, sampled, weights)
    sums = {**found.sums, "clip_fraction": decided.sum()}
    if loss.anchored:
        sums["update_kl"] = k3(anchor, new.detach()).double().sum()
    if kl is not None:
        losses = losses + cfg.kl_coef * kl if cfg.kl_in == "loss" else losses
        sums["kl"] = kl.detach().double().sum()
    if cfg.entropy_coef:
        assert entropy is not None, "entropy_coef > 0 needs the entropy"
        losses = losses - cfg.entropy_coef * entropy
        sums["entropy"] = entropy.detach().double().sum()
    total = losses.sum()
    sums["loss"] = total.detach()
    landing = () if old is None else (landing_statistics(old, sampled),)
    return TokenLoss(total, (Statistics(sums, found.maxima, found.ratio_counts), *landing))


def rewarded(sampled: Sampled, kl: Tensor, cfg: LearnConfig) -> Sampled:
    """The same with what the estimates ``kl`` [T] take off the advantages, where that is not done elsewhere."""
    if cfg.kl_in == "loss" or cfg.advantage == "gae":
        return sampled
    taken = kl if cfg.advantage == "none" else to_go(kl, sampled)
    return replace(sampled, advantages=sampled.advantages - cfg.kl_coef * taken)
