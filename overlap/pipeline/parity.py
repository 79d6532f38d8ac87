"""Do engine and learner hold the same weights? Compare their log-probs on a probe sequence after every sync.

Checksums do not see a stale packed matrix inside the engine; the numbers that it really computes do.

In float32 every token of the probe counts, and the bound holds for the largest difference. In bfloat16 the two sum in
different orders, and rounding alone moves the log-prob of an improbable token by tenths: d log p = (1 - p) d logit.
There the bound holds for the difference that 99 % of the *confident* tokens (p >= 0.95 in the engine) keep, where that
factor is small, and all but one of them where there are few; and twice the bound for the mean difference over all
tokens. Stale weights raise both, rounding neither. The largest difference would stop a healthy run sooner or later: it
is a metric only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from overlap.core.errors import ParityError

CONFIDENT = 0.95
QUANTILE = 0.99
MEAN_FACTOR = 2.0


def logprob_gaps(engine: Sequence[float], learner: Sequence[float]) -> list[float]:
    """Absolute differences [T], nats. Raises ParityError when the two are of different tokens, or of none."""
    if len(engine) != len(learner) or not engine:
        raise ParityError(f"engine gave {len(engine)} log-probs for the probe, learner {len(learner)}")
    gaps = [abs(a - b) for a, b in zip(engine, learner, strict=True)]
    return [gap if math.isfinite(gap) else math.inf for gap in gaps]


def engine_by_engine(logprobs: Sequence[float], length: int) -> list[Sequence[float]]:
    """Split the answers to a probe of ``length`` + 1 tokens by engine; at least one answer."""
    return [logprobs[start : start + length] for start in range(0, len(logprobs), max(1, length))] or [logprobs]


def check_parity(
    engine: Sequence[float], learner: Sequence[float], *, bound: float, version: int, exact: bool, options: str = ""
) -> float:
    """Largest difference over the tokens that count, nats; raises ParityError when engine and learner disagree.

    ``exact``: the two compute in float32, so every token counts, up to the largest difference. ``options`` are those of
    ``rollout.engine``, which may be the reason.
    """
    gaps = logprob_gaps(engine, learner)
    counted = sorted(gap for gap, e in zip(gaps, engine, strict=True) if exact or e >= math.log(CONFIDENT))
    worst = max(counted, default=0.0)
    kept, mean = worst if exact else _most(counted), math.fsum(gaps) / len(gaps)
    if kept > bound or (not exact and mean > MEAN_FACTOR * bound):
        told = f"{kept:.4g} nats over all {len(gaps)} probe tokens (at most {bound:g} is allowed)"
        if not exact:
            share = f"{QUANTILE:.0%}" if len(counted) > 100 else "all but one"
            told = f"{kept:.4g} nats over {share} of {len(counted)} probe tokens of p >= {CONFIDENT:g} (at most "
            told += f"{bound:g} is allowed, largest {worst:.4g}), and by {mean:.4g} on average over all {len(gaps)} "
            told += f"(at most {MEAN_FACTOR * bound:g} is allowed)"
        what = f"after loading version {version} engine and learner log-probs differ by up to {told}"
        raise ParityError(f"{what}: {_reason(options)}")
    return worst


def _reason(options: str) -> str:
    if not options:
        return "the engine does not serve the learner's weights"
    told = (
        f"the engine computes in another way with rollout.engine ({options}), or does not serve the learner's weights"
    )
    return f"{told}: leave out the option that changes log-probs"


def _most(ordered: Sequence[float]) -> float:
    """Value that ``QUANTILE`` of them do not exceed, and all but one where there are few; 0 of none."""
    last = min(math.ceil(QUANTILE * len(ordered)) - 1, len(ordered) - 2)
    return ordered[max(0, last)] if ordered else 0.0
