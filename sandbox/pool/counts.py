"""The counts of a pool: outcomes, and how long they took, in memory that does not grow.

A Histogram has buckets whose bounds grow by 5 %, from 10 µs to about 10^5 s; a percentile is the middle of its bucket
(by ratio), so it is within 2.5 % of the exact one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

from sandbox.core.nouns import Judgement

_LEAST_S: Final = 1e-5
_RATIO: Final = 1.05
_BUCKETS: Final = 473


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Seconds, within 2.5 %; 0 when nothing was counted."""

    p50_s: float = 0.0
    p95_s: float = 0.0
    p99_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PoolStats:
    """Counts since the pool was made."""

    queued: int
    running: int
    done: int
    """Judgements given."""
    infrastructure_failures: int
    """Tries that failed by a fault of the sandbox, whether a later try succeeded or not."""
    verdicts: Mapping[str, int]
    busy_s: float
    """Seconds spent on judgements, summed."""
    queue_s: float
    """Seconds that judgements waited, summed."""
    queue_delay: Percentiles
    """Seconds of the judged programs in everything but the judging (queue, transport, failed tries)."""
    run_time: Percentiles
    """Seconds of the judged programs in compiling and running."""
    cache_hits: int
    """Judgements given that were made for an equal program."""
    recycled: int
    """Jails and workers replaced because of their age or their memory."""
    split: int
    """Programs whose cases were spread over idle workers."""
    runs: int = 0
    """Programs that were run without a verdict."""


class Histogram:
    """Seconds, counted by size."""

    def __init__(self) -> None:
        self.counts = [0] * _BUCKETS

    def add(self, seconds: float) -> None:
        place = math.log(max(seconds, _LEAST_S) / _LEAST_S) / math.log(_RATIO)
        self.counts[min(int(place), _BUCKETS - 1)] += 1

    def percentiles(self) -> Percentiles:
        return Percentiles(*(self.percentile(share) for share in (0.5, 0.95, 0.99)))

    def percentile(self, share: float) -> float:
        """The value that `share` of the counted ones do not exceed."""
        total = sum(self.counts)
        wanted = max(1, math.ceil(total * share))
        for index, count in enumerate(accumulate(self.counts)):
            if count >= wanted:
                return float(_LEAST_S * _RATIO ** (index + 0.5))
        return 0.0


@dataclass(slots=True)
class Counts:
    """The live counts behind PoolStats."""

    waiting: int = 0
    """judge() calls that have not returned."""
    running: int = 0
    done: int = 0
    failures: int = 0
    hits: int = 0
    recycled: int = 0
    split: int = 0
    runs: int = 0
    busy_s: float = 0.0
    queue_s: float = 0.0
    verdicts: dict[str, int] = field(default_factory=dict)
    queue_delay: Histogram = field(default_factory=Histogram)
    run_time: Histogram = field(default_factory=Histogram)

    def record(self, done: Judgement, *, shared: bool) -> None:
        self.done += 1
        self.verdicts[done.verdict.value] = self.verdicts.get(done.verdict.value, 0) + 1
        if shared:
            self.hits += 1
            return
        self.busy_s += done.run_s
        self.queue_s += done.queue_s
        self.queue_delay.add(done.queue_s)
        self.run_time.add(done.run_s)

    def stats(self) -> PoolStats:
        return PoolStats(
            queued=max(0, self.waiting - self.running),
            running=self.running,
            done=self.done,
            infrastructure_failures=self.failures,
            verdicts=dict(self.verdicts),
            busy_s=self.busy_s,
            queue_s=self.queue_s,
            queue_delay=self.queue_delay.percentiles(),
            run_time=self.run_time.percentiles(),
            cache_hits=self.hits,
            recycled=self.recycled,
            split=self.split,
            runs=self.runs,
        )
