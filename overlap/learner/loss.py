"""The policy loss, as pure functions of tensors [T]: one entry for each counted response token, no padding.

Per token, with the learner's log-prob ``new``, its log-prob before the step ``old`` and the engine's ``engine``::

    anchor = new for the loss "pg", old for all others
    l = w(anchor, engine) * loss(new, anchor) + kl_coef * k(new, reference) - entropy_coef * H

With ``kl_in="reward"`` the KL's term is not there, and the advantage in ``loss`` is less by kl_coef times what
k(anchor, reference) says of the token and of those behind it (``overlap.learner.kl``); under "gae" the critic's rewards
are. So ``kl_coef`` is in the units of advantages, whatever these were divided by.
``anchor`` and the weight w (``overlap.learner.correction``) carry no gradient; for the losses of tokens see
``overlap.learner.losses``. "ppo" is decoupled PPO (Hilton et al. 2022; AReaL, Fu et al. 2025, eq. 5) with DAPO's
two bounds (Yu et al. 2025, section 3.1), "cispo" and "gspo" are decoupled likewise, and "pg" is REINFORCE with
importance weights (verl ``compute_policy_loss_reinforce``, "pure IS"). The loss of a mini-batch is the sum of ``l``
over the number of *all* its counted tokens, on all ranks (DAPO, section 3.3): a split changes nothing. Responses are
never split, so that holds for the ratio of a whole one, too.

With one update per batch, ``old`` is ``new`` without its gradient: ratios are 1, the gradient is that of ``-w A new``,
all losses take the same step, and no further forward pass is needed. With more updates, ``old`` is computed before
the first one, unless nothing is held to it ("pg").
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from overlap.config.learn import LearnConfig
from overlap.learner.correction import Sampled, correction
from overlap.learner.kl import KL_ESTIMATES, k3, to_go
from overlap.learner.losses import dual_clipped, policy_loss
from overlap.learner.statistics import Statistics, landing_statistics, token_statistics


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
