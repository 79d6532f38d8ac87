"""Estimates of the KL divergence from a reference policy by the sampled token, and what a step along each of them does:
pure functions of tensors [T], no padding.

In the terms of Schulman 2020 (http://joschu.net/blog/kl-approx.html): a token is drawn from the policy p, which gives
it the log-prob ``new``, the reference policy q the log-prob ``reference``. With d = new - reference::

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

import torch
from torch import Tensor

from overlap.learner.correction import LOG_RATIO_MAX, Sampled


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
