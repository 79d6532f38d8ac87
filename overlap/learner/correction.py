"""Off-policy corrections: how much the surrogate of each token weighs, as pure functions of tensors [T], no padding.

The engine drew the tokens with log-probs ``engine``; the surrogate is built around the learner's log-probs ``anchor``,
which carry no gradient (see ``overlap.learner.loss``). With d = anchor - engine, a token's ratio is exp(d), and::

    none        1
    tis         min(exp(d), bound)
    mis         exp(d)      if 1 / bound <= exp(d) <= bound                 else 0
    seq_mis     exp(sum d)  if exp(sum d) <= bound, sum over the response       else 0
    decoupled   exp(d)      if exp(d) <= bound                                  else 0
    dppo        exp(d)      unless the advantage A pushes where it went:      else 0
                            A > 0 and p > q + bound, or A < 0 and p < q - bound, with p = exp(anchor), q = exp(engine)

A masked token (weight 0) still counts in the loss's normaliser, as in TRL: were it left out, as in verl, the rest of
the batch would get a larger step for what is thrown away.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, assert_never

import torch
from torch import Tensor

Correction = Literal["tis", "mis", "seq_mis", "decoupled", "dppo", "none"]

LOG_RATIO_MAX = 20.0
"""Log of the largest ratio: exp of more is never a useful one, and overflows to inf * 0 = nan."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """What T tokens of R responses bring along from the engine; the tokens of a response stand together.

    ``engine`` (log-probs) and ``advantages`` (rewards, until a critic has seen them) are [T] floats, ``owners`` [T] the
    response of each token, 0 to R-1.
    ``landed`` [T] is True for tokens that the version which is trained sampled in a response that an older one began.
    """

    engine: Tensor
    advantages: Tensor
    owners: Tensor
    landed: Tensor
    responses: int


@dataclass(frozen=True, slots=True)
class Weights:
    """``values`` [T], without gradient, and what became of each token [T], bool: its weight was cut, or is 0."""

    values: Tensor
    capped: Tensor
    masked: Tensor


PUBLISHED: dict[Correction, float] = {"tis": 2.0, "mis": 2.0, "seq_mis": 2.0, "decoupled": 5.0, "dppo": 0.2}
"""Correction → its bound in the publication or program that its function names."""


def correct(correction: Correction, anchor: Tensor, sampled: Sampled, bound: float | None = None) -> Weights:
    """Weights by the scheme of that name; ``bound`` is for ratios, for dppo for differences of probabilities (None:
    the published one).
    """
    anchor, engine = anchor.detach(), sampled.engine
    bound = PUBLISHED.get(correction, 0.0) if bound is None else bound
    match correction:
        case "none":
            return uncorrected(engine)
        case "tis":
            return truncated(anchor - engine, bound)
        case "mis":
            return masked(anchor - engine, 1.0 / bound, bound)
        case "seq_mis":
            return sequence_masked(anchor - engine, sampled.owners, sampled.responses, bound)
        case "decoupled":
            return masked(anchor - engine, 0.0, bound)
        case "dppo":
            return variation_masked(anchor, engine, sampled.advantages, bound)
        case _:
            assert_never(correction)


def uncorrected(engine: Tensor) -> Weights:
    """All ones: right where the engine sampled from the policy that is trained, up to rounding."""
    no = torch.zeros_like(engine, dtype=torch.bool)
    return Weights(torch.ones_like(engine), no, no)


def truncated(log_ratio: Tensor, cap: float) -> Weights:
    """Token ratios, cut at ``cap``.

    Ionides 2008 (truncated importance sampling); for an engine that is not the learner, Yao et al. 2025 ("Your
    Efficient RL Framework Secretly Brings You Off-Policy RL Training"); verl ``rollout_corr_helper.py``
    ``compute_rollout_correction_weights`` with ``rollout_is="token"``, whose cap is 2.
    """
    ratio = ratios(log_ratio)
    capped = ratio > cap
    return Weights(ratio.clamp(max=cap), capped, torch.zeros_like(capped))


def masked(log_ratio: Tensor, low: float, high: float) -> Weights:
    """Token ratios inside [low, high], 0 outside.

    With two bounds, IcePop (Ling team 2025, "Every Step Evolves", section on IcePop; verl
    ``decoupled_token_icepop``, bounds 0.5 and 5); here the lower one is the reciprocal of the upper, as in verl's
    ``compute_rollout_rejection_mask``. With the upper one alone, AReaL's decoupled loss: Fu et al. 2025, eq. 5, after
    Hilton et al. 2022, with tokens over the cap (5) left out, ``ppo_actor_loss_fn`` and ``behave_imp_weight_cap``.
    """
    ratio = ratios(log_ratio)
    out = (ratio < low) | (ratio > high)
    return Weights(ratio.masked_fill(out, 0.0), torch.zeros_like(out), out)


def sequence_masked(log_ratio: Tensor, owners: Tensor, responses: int, cap: float) -> Weights:
    """The ratio of the whole response on each of its tokens, 0 where that is over ``cap``.

    Liu, Li et al. 2025 ("When Speed Kills Stability", sequence-level masked importance sampling); TRL
    ``GRPOTrainer``, importance sampling mode "sequence_mask", cap 3; verl
    ``RolloutCorrectionConfig.seq_mis``, cap 2. Sums are in float64: a response may have tens of thousands of tokens.
    """
    total = torch.zeros(responses, dtype=torch.float64, device=log_ratio.device)
    ratio = ratios(total.index_add_(0, owners, log_ratio.double()))
    out = ratio > cap
    values = ratio.masked_fill(out, 0.0).to(log_ratio.dtype)
    return Weights(values[owners], torch.zeros_like(out)[owners], out[owners])


def variation_masked(anchor: Tensor, engine: Tensor, advantages: Tensor, bound: float) -> Weights:
    """Token ratios; 0 where the advantage pushes a probability further away that is over ``bound`` off already.

    DPPO with the binary approximation of the total variation: Qi et al. 2026 (arXiv 2602.04879), whose trust region
    lies around the policy that sampled; prime-rl ``trainer/rl/loss.py`` ``default_loss_fn``, bound 0.2. prime-rl adds
    1e-3 times the squared log-ratio of every token to the loss; this is the mask alone.
    """
    moved = anchor.exp() - engine.exp()
    out = ((advantages > 0) & (moved > bound)) | ((advantages < 0) & (moved < -bound))
    return Weights(ratios(anchor - engine).masked_fill(out, 0.0), torch.zeros_like(out), out)


def ratios(log_ratio: Tensor) -> Tensor:
    """exp of log-ratios [T], held within what can be multiplied."""
    return log_ratio.clamp(-LOG_RATIO_MAX, LOG_RATIO_MAX).exp()
