"""Parts of a step's wall time: arithmetic on spans of time.

A span is ``(start_s, end_s)`` in seconds of ``time.monotonic()``. Nothing here adds up per-sample times: with many
samples at once only *wall* spans (unions of spans) say where a step's time went.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from overlap.core import Scored
    from overlap.pipeline.learning import StepResult

Span = tuple[float, float]
Row = dict[str, float]
NAN = float("nan")

WALL_PARTS = (
    ("generate", "time/generate_s"),
    ("exposed reward", "time/exposed_reward_s"),
    ("learn", "time/learn_s"),
    ("sync", "time/sync_s"),
    ("parity check", "time/parity_s"),
)
"""Parts of a step's time where its stages follow each other: a name, and the metric."""


def merge_spans(spans: Iterable[Span]) -> list[Span]:
    """Disjoint spans, in order, that cover the same time. Spans that end before they begin are left out."""
    merged: list[Span] = []
    for start, end in sorted(s for s in spans if s[1] >= s[0]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def union_s(spans: Iterable[Span]) -> float:
    """Seconds during which at least one of the spans was open."""
    return sum(end - start for start, end in merge_spans(spans))


def clip(spans: Iterable[Span], window: Span) -> list[Span]:
    """The parts of the spans that lie inside the window."""
    inside = ((max(start, window[0]), min(end, window[1])) for start, end in spans)
    return [span for span in inside if span[1] > span[0]]


def quantile(values: Iterable[float], q: float) -> float:
    """Nearest-rank quantile, 0 <= q <= 1; NaN of nothing."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)] if ordered else NAN


def mean(values: Iterable[float]) -> float:
    """Arithmetic mean; NaN of nothing."""
    listed = list(values)
    return math.fsum(listed) / len(listed) if listed else NAN


TIMINGS = (
    *("step_s", "generate_s", "reward_s", "exposed_reward_s", "overlap_efficiency"),
    *("generator_idle_share", "learner_idle_share", "learn_s", "sync_s", "parity_s"),
    *("samples_per_s", "tokens_per_s", "decode_tokens_per_s"),
)
"""Figures of ``step_times``."""


def step_times(result: StepResult, step_span: Span, engine_spans: Sequence[Span]) -> Row:
    """Parts of a step's wall time by name, s, 1/s and shares from 0 to 1; all samples of its batch count, those of
    dropped groups too. NaN for a ratio of nothing. ``docs/metrics.md`` says what each is.

    overlap_efficiency = (generate_s + reward_s - wall) / min(generate_s, reward_s), with wall from the first request to
    the last verdict or token. An idle share is 1 - (union of the spans in the step) / step_s. ``engine_spans`` is when
    the engine worked for any step: with ``max_staleness`` >= 1 it is busy with later batches while this one is learned
    from. decode_tokens_per_s, over generate_s, compares with a bare engine on the same requests.
    """
    samples = result.batch.all_samples
    tokens = sum(s.trajectory.sampled for s in samples)
    generated = [(s.trajectory.started_s, s.trajectory.finished_s) for s in samples]
    verified = [(s.started_s, s.finished_s) for s in judged(samples)]
    first_s = min((start for start, _ in generated), default=0.0)
    token_s = max((end for _, end in generated), default=0.0)
    verdict_s = max((end for _, end in verified), default=0.0)
    step_s, generate_s, reward_s = step_span[1] - step_span[0], token_s - first_s, union_s(verified)
    hidden_s = generate_s + reward_s - (max(token_s, verdict_s) - first_s)
    busy_s, learning_s = (union_s(clip(spans, step_span)) for spans in (engine_spans, [result.learn_span]))
    learn_s, sync_s, parity_s = (
        end - start for start, end in (result.learn_span, result.sync_span, result.parity_span)
    )
    return {
        "step_s": step_s,
        "generate_s": generate_s,
        "reward_s": reward_s,
        "exposed_reward_s": max(0.0, verdict_s - token_s),
        "overlap_efficiency": _ratio(max(0.0, hidden_s), min(generate_s, reward_s)),
        "generator_idle_share": _ratio(step_s - busy_s, step_s),
        "learner_idle_share": _ratio(step_s - learning_s, step_s),
        "learn_s": learn_s,
        "sync_s": sync_s,
        "parity_s": parity_s,
        "samples_per_s": _ratio(len(samples), step_s),
        "tokens_per_s": _ratio(tokens, step_s),
        "decode_tokens_per_s": _ratio(tokens, generate_s),
    }


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else NAN


def run_span(scored: Scored) -> Span:
    """Span in which a sandbox ran the sample, which on another machine ends before its verdict has come back."""
    judgement = scored.judgement
    if judgement is None or not judgement.node:
        return scored.started_s, scored.finished_s
    return scored.started_s, min(scored.finished_s, scored.started_s + judgement.run_s)


def judged(samples: Iterable[Scored]) -> list[Scored]:
    """Samples whose verification began and ended; one that failed before it began has no times."""
    return [s for s in samples if s.started_s and s.finished_s >= s.started_s]
