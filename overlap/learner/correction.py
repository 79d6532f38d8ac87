"""Off-policy corrections: how much the surrogate of each token weighs, as pure functions of tensors [T], no padding.

The engine drew the tokens with log-probs ``engine``; the surrogate is built around the learner's log-probs ``anchor``,
which carry no gradient (see ``overlap.learner.losses``). With d = anchor - engine, a token's ratio is exp(d), and::

    none        1
    tis         min(exp(d), bound)
    mis         exp(d)      if 1 / bound <= exp(d) <= bound                 else 0
    seq_mis     exp(sum d)  if exp(sum d) <= bound, sum over the response       else 0
    decoupled   exp(d)      if exp(d) <= bound                                  else 0
    dppo        min(exp(d), 20)   unless the advantage A pushes where it went:  else 0
                            A > 0 and p > q + bound, or A < 0 and p < q - bound, with p = exp(anchor), q = exp(engine)

A masked token (weight 0) still counts in the loss's normaliser, as in TRL: were it left out, as in verl, the rest of
the batch would get a larger step for what is thrown away.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import torch
from torch import Tensor

from overlap.config.import_path import import_function, trying

FIELD = "learn.correction"
LOG_RATIO_MAX = 20.0
"""Log of the largest ratio: exp of more is never a useful one, and overflows to inf * 0 = nan."""

DPPO_RATIO_MAX = 20.0
"""Largest weight under "dppo", whose mask leaves the ratios of rare tokens unbounded: large, for a small one biases
against them (DPPO, section 5.4; verl ``clip_ratio_c``)."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """Data of T tokens of R responses from the engine; the tokens of a response are contiguous.

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


class TokenCorrection(Protocol):
    """The weight of each token's loss; ``learn.correction=my_module:my_correction`` names one of the user's.

    Called in the learner's ranks, for the T counted response tokens of a micro-batch, without padding. ``anchor`` [T]
    float32, without gradient: the learner's log-probs that the loss is built around. ``sampled.engine`` [T]: those of
    the engine that drew the tokens. ``bound``: 2, unless the function
    has one of its own.

    Returns ``Weights``: values [T] without gradient, and for the metrics which of them were cut, or masked to 0.
    """

    def __call__(self, anchor: Tensor, sampled: Sampled, bound: float) -> Weights: ...


@dataclass(frozen=True, slots=True)
class CorrectionEntry:
    """A correction with the bound of the publication or program that its function names."""

    function: TokenCorrection
    bound: float = 2.0

    def __call__(self, anchor: Tensor, sampled: Sampled, bound: float | None = None) -> Weights:
        """``function``; None is the published bound."""
        return self.function(anchor.detach(), sampled, self.bound if bound is None else bound)


def uncorrected(anchor: Tensor, sampled: Sampled, bound: float) -> Weights:
    """All ones: right where the engine sampled from the policy that is trained, up to rounding."""
    no = torch.zeros_like(sampled.engine, dtype=torch.bool)
    return Weights(torch.ones_like(sampled.engine), no, no)


def truncated_ratios(anchor: Tensor, sampled: Sampled, bound: float) -> Weights:
    """Token ratios, cut at ``bound``.

    Ionides 2008 (truncated importance sampling); for an engine that is not the learner, Yao et al. 2025 ("Your
    Efficient RL Framework Secretly Brings You Off-Policy RL Training"); verl ``rollout_corr_helper.py``
    ``compute_rollout_correction_weights`` with ``rollout_is="token"``, whose cap is 2.
    """
    ratio = ratios(anchor - sampled.engine)
    capped = ratio > bound
    return Weights(ratio.clamp(max=bound), capped, torch.zeros_like(capped))


def masked_ratios(anchor: Tensor, sampled: Sampled, bound: float) -> Weights:
    """Token ratios inside [1 / bound, bound], 0 outside.

    IcePop (Ling team 2025, "Every Step Evolves", section on IcePop; verl ``decoupled_token_icepop``, bounds 0.5 and 5);
    here the lower one is the reciprocal of the upper, as in verl's ``compute_rollout_rejection_mask``.
    """
    return _inside(anchor - sampled.engine, 1.0 / bound, bound)


def capped_ratios(anchor: Tensor, sampled: Sampled, bound: float) -> Weights:
    """Token ratios up to ``bound``, 0 over it.

    AReaL's decoupled loss: Fu et al. 2025, eq. 5, after Hilton et al. 2022, with tokens over the cap left out,
    ``RejectionSamplingConfig`` with its defaults: level "token", action "mask", metric "ratio", upper 5.
    """
    return _inside(anchor - sampled.engine, 0.0, bound)


def _inside(log_ratio: Tensor, low: float, high: float) -> Weights:
    ratio = ratios(log_ratio)
    out = (ratio < low) | (ratio > high)
    return Weights(ratio.masked_fill(out, 0.0), torch.zeros_like(out), out)


def masked_sequences(anchor: Tensor, sampled: Sampled, bound: float) -> Weights:
    """The ratio of the whole response on each of its tokens, 0 where that is over ``bound``.

    Liu, Li et al. 2025 ("When Speed Kills Stability", sequence-level masked importance sampling); TRL
    ``GRPOTrainer``, importance sampling mode "sequence_mask", cap 3; verl
    ``RolloutCorrectionConfig.decoupled_seq_is_rs``, cap 2, which also leaves out ratios below 1/2. Of an episode each
    branch is a response. Sums are in float64: a response may have tens of thousands of tokens.
    """
    log_ratio, owners = anchor - sampled.engine, sampled.owners
    total = torch.zeros(sampled.responses, dtype=torch.float64, device=log_ratio.device)
    ratio = ratios(total.index_add_(0, owners, log_ratio.double()))
    out = ratio > bound
    values = ratio.masked_fill(out, 0.0).to(log_ratio.dtype)
    return Weights(values[owners], torch.zeros_like(out)[owners], out[owners])


def masked_by_variation(anchor: Tensor, sampled: Sampled, bound: float) -> Weights:
    """Token ratios, cut at ``DPPO_RATIO_MAX``; 0 where the advantage pushes a probability further away that is over
    ``bound`` off already.

    DPPO with the binary approximation of the total variation: Qi et al. 2026 (arXiv 2602.04879), whose trust region is
    around the policy that sampled; prime-rl ``trainer/rl/loss.py`` ``default_loss_fn``, bound 0.2; the cut is that of
    verl's ``compute_policy_loss_dppo_tv``. prime-rl adds 1e-3 times the squared log-ratio of every token to the loss;
    this is the mask alone.
    """
    engine, advantages = sampled.engine, sampled.advantages
    moved = anchor.exp() - engine.exp()
    out = ((advantages > 0) & (moved > bound)) | ((advantages < 0) & (moved < -bound))
    ratio = ratios(anchor - engine)
    capped = (ratio > DPPO_RATIO_MAX) & ~out
    return Weights(ratio.clamp(max=DPPO_RATIO_MAX).masked_fill(out, 0.0), capped, out)


def ratios(log_ratio: Tensor) -> Tensor:
    """exp of log-ratios [T], held within what can be multiplied."""
    return log_ratio.clamp(-LOG_RATIO_MAX, LOG_RATIO_MAX).exp()


CORRECTIONS: Mapping[str, CorrectionEntry] = {
    "tis": CorrectionEntry(truncated_ratios),
    "mis": CorrectionEntry(masked_ratios),
    "seq_mis": CorrectionEntry(masked_sequences),
    "decoupled": CorrectionEntry(capped_ratios, 5.0),
    "dppo": CorrectionEntry(masked_by_variation, 0.2),
    "none": CorrectionEntry(uncorrected),
}
"""The values of ``learn.correction``."""


@cache
def correction(name: str) -> CorrectionEntry:
    """The entry of a ``learn.correction``. Raises ConfigError for a function of the user's that cannot be used."""
    if ":" not in name:
        return CORRECTIONS[name]
    entry = CorrectionEntry(import_function(FIELD, name, TokenCorrection))
    anchor, sampled = some_tokens()
    with trying(FIELD, name, TokenCorrection):
        found = entry(anchor, sampled)
        check_column("Weights.values", found.values, anchor)
        check_column("Weights.capped", found.capped, anchor, torch.bool)
        check_column("Weights.masked", found.masked, anchor, torch.bool)
    return entry


def some_tokens() -> tuple[Tensor, Sampled]:
    """Log-probs [3] with a gradient, of two responses, on which a function of the user's is tried."""
    new = torch.tensor([-0.5, -1.0, -0.1], requires_grad=True)
    owners = torch.tensor([0, 0, 1])
    return new, Sampled(new.detach() - 0.1, torch.tensor([1.0, 1.0, -1.0]), owners, owners == 1, 2)


def check_column(what: str, found: object, tokens: Tensor, dtype: torch.dtype | None = None) -> None:
    """Raise TypeError or ValueError for what is no tensor with an entry for each of the tokens."""
    if not isinstance(found, Tensor):
        raise TypeError(f"{what}: {type(found).__name__}, and not a tensor")
    if found.shape != tokens.shape or (dtype is not None and found.dtype != dtype):
        wanted = f"[{len(tokens)}]" + (f" of {dtype}" if dtype is not None else "")
        raise ValueError(f"{what}: {list(found.shape)} of {found.dtype}, and not {wanted}")
