"""Statistics of a step's tokens: sums and maxima of a micro-batch, added up over micro-batches and ranks.

All statistics are made of numbers that can be added (or maximised) in any order, so neither the split nor the number of
ranks changes it beyond rounding; sums are in float64. Quantiles are read from a histogram for that reason.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from overlap.learner.correction import LOG_RATIO_MAX, Sampled, Weights, ratios

RATIO_STEP = 1e-3
"""Resolution of the histogram of log-ratios, nats."""
_HALF = round(LOG_RATIO_MAX / RATIO_STEP)
_QUANTILES = {"ratio_p01": 0.01, "ratio_p50": 0.5, "ratio_p99": 0.99}
_MEANS = (
    "loss",
    "clip_fraction",
    "entropy",
    "kl",
    "update_kl",
    "ratio_mean",
    "ratio_mean_abs_logdiff",
    "ratio_kl",
    "is_capped_fraction",
    "is_masked_fraction",
)
_COUNTS = ("responses", "masked_responses", "weights", "weights_squared", "landed", "landing_gap")
_SUMS = (*_MEANS, *_COUNTS)
_MAXIMA = ("ratio_max", "ratio_max_logdiff", "landing_gap_max")
METRICS = (*_MEANS, *_MAXIMA, *_QUANTILES, "is_masked_responses_fraction", "is_effective_fraction", "landing_gap_mean")
"""Names of all that :meth:`Tally.metrics` gives; "kl" and "update_kl" only where they are summed."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """Statistics of the tokens of a micro-batch, without gradient: ``sums`` can be added, ``maxima`` maximised.

    ``ratio_counts`` can be added, too: the histogram of the log-ratios, see :func:`ratio_histogram`.
    """

    sums: Mapping[str, Tensor]
    maxima: Mapping[str, Tensor]
    ratio_counts: Tensor | None = None


def token_statistics(new: Tensor, anchor: Tensor, sampled: Sampled, weights: Weights) -> Statistics:
    """Statistics of learner against engine, from log-probs [T]; ``anchor`` is what the weights were made with.

    ``ratio_kl`` is the k3 estimate (``overlap.learner.losses``) of KL(engine || learner): the engine drew the tokens.
    ``entropy`` is estimated by the negative log-prob of the sampled tokens, which costs nothing and is unbiased
    on-policy.
    """
    engine, values = sampled.engine.double(), weights.values.double()
    log_ratio = anchor.double() - engine
    held = log_ratio.clamp(max=LOG_RATIO_MAX)
    masked = torch.zeros(sampled.responses, dtype=torch.bool, device=new.device)
    masked[sampled.owners[weights.masked]] = True
    sums = {
        "entropy": -new.double().sum(),
        "ratio_mean": ratios(log_ratio).sum(),
        "ratio_mean_abs_logdiff": log_ratio.abs().sum(),
        "ratio_kl": (held.exp() - held - 1.0).sum(),
        "is_capped_fraction": weights.capped.sum(),
        "is_masked_fraction": weights.masked.sum(),
        "responses": torch.tensor(sampled.responses, device=new.device),
        "masked_responses": masked.sum(),
        "weights": values.sum(),
        "weights_squared": values.square().sum(),
    }
    maxima = {"ratio_max": ratios(log_ratio).max(), "ratio_max_logdiff": log_ratio.abs().max()}
    return Statistics(sums, maxima, ratio_histogram(log_ratio))


def landing_statistics(before: Tensor, sampled: Sampled) -> Statistics:
    """Distance of engine and learner on tokens that the version which is trained sampled behind an older one's.

    ``before`` [T] are the log-probs of that version by the learner. It is the error of how weights land: what was
    computed of a sequence before, by the older version, is all that can make a difference beyond rounding.
    """
    gaps = (before - sampled.engine).double().abs()[sampled.landed]
    sums = {"landed": sampled.landed.sum(), "landing_gap": gaps.sum()}
    return Statistics(sums, {"landing_gap_max": gaps.max()} if gaps.numel() else {})


def ratio_histogram(log_ratio: Tensor) -> Tensor:
    """Count the log-ratios [T] within half a step of i ``RATIO_STEP``, [2 * LOG_RATIO_MAX / RATIO_STEP + 1].

    i goes from -LOG_RATIO_MAX / RATIO_STEP up; what is beyond counts at the end.
    """
    steps = (log_ratio.nan_to_num() / RATIO_STEP).round().clamp(-_HALF, _HALF).long()
    return torch.bincount(steps + _HALF, minlength=2 * _HALF + 1)


def ratio_quantile(counts: Tensor, q: float) -> float:
    """Nearest-rank quantile, 0 <= q <= 1, of the ratios in a histogram, to half a step; NaN of none."""
    so_far = counts.cumsum(0)
    count = int(so_far[-1])
    if not count:
        return math.nan
    place = int(torch.searchsorted(so_far, max(1, math.ceil(q * count))))
    return math.exp((place - _HALF) * RATIO_STEP)


class Tally:
    """Statistics of a step, of this rank until :meth:`reduce`."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.sums = torch.zeros(len(_SUMS), dtype=torch.float64, device=device)
        self.maxima = torch.zeros(len(_MAXIMA), dtype=torch.float64, device=device)
        self.ratio_counts = torch.zeros(2 * _HALF + 1, dtype=torch.int64, device=device)
        self.seen: set[str] = set()

    def add(self, found: Statistics) -> None:
        """Another micro-batch."""
        zero = self.sums.new_zeros(())
        self.sums += torch.stack([found.sums.get(name, zero).double() for name in _SUMS])
        self.maxima = self.maxima.maximum(torch.stack([found.maxima.get(n, zero).double() for n in _MAXIMA]))
        if found.ratio_counts is not None:
            self.ratio_counts += found.ratio_counts
        self.seen.update(found.sums)

    def reduce(self) -> None:
        """Collective: from here on it is that of all ranks."""
        if dist.get_world_size() > 1:
            dist.all_reduce(self.sums)
            dist.all_reduce(self.ratio_counts)
            dist.all_reduce(self.maxima, dist.ReduceOp.MAX)

    def metrics(self, tokens: int) -> dict[str, float]:
        """Metrics of a step of ``tokens`` counted tokens. NaN: no token is of that kind.

        ``is_effective_fraction`` is the effective sample size of the weights over ``tokens`` (Kish 1965); 0 where all
        are masked.
        """
        sums = dict(zip(_SUMS, self.sums.tolist(), strict=True))
        maxima = dict(zip(_MAXIMA, self.maxima.tolist(), strict=True))
        squared, landed = sums["weights_squared"], sums["landed"]
        maxima["landing_gap_max"] = maxima["landing_gap_max"] if landed else math.nan
        counts = self.ratio_counts.cpu()
        return (
            {name: sums[name] / tokens for name in _MEANS if name in self.seen}
            | maxima
            | {name: ratio_quantile(counts, q) for name, q in _QUANTILES.items()}
            | {
                "is_masked_responses_fraction": sums["masked_responses"] / sums["responses"],
                "is_effective_fraction": sums["weights"] ** 2 / (tokens * squared) if squared else 0.0,
                "landing_gap_mean": sums["landing_gap"] / landed if landed else math.nan,
            }
        )
