"""Delay of the driver's event loop in running due callbacks: late callbacks show that something blocks the loop."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, fields

from sandbox.pool.counts import Histogram


@dataclass(frozen=True, slots=True)
class Lag:
    """Delay with which the event loop ran due callbacks, ms."""

    p50_ms: float
    p99_ms: float
    max_ms: float

    def row(self) -> dict[str, float]:
        """The fields as ``time/loop_lag_...``."""
        return {f"time/loop_lag_{f.name}": float(getattr(self, f.name)) for f in fields(self)}


class LagHistogram:
    """Lags in the sandbox's histogram of durations (within 2.5 %), and the exact largest."""

    def __init__(self) -> None:
        self._seconds = Histogram()
        self._max_ms = 0.0

    def add(self, lag_ms: float) -> None:
        self._seconds.add(lag_ms / 1e3)
        self._max_ms = max(self._max_ms, lag_ms)

    def lag(self) -> Lag:
        p50_ms, p99_ms = (min(self._max_ms, 1e3 * self._seconds.percentile(q)) for q in (0.5, 0.99))
        return Lag(p50_ms, p99_ms, self._max_ms)


class LoopLag:
    """Measures the lag of the running event loop: a task that sleeps ``interval_s`` and sees how late it wakes.

    A block of L seconds delays every callback that falls due within it, so it enters as L, L - interval, L - 2
    interval, ... (Tene's correction of coordinated omission): the quantiles are those of a random instant.
    """

    def __init__(self, interval_s: float = 0.01) -> None:
        self.interval_s = interval_s
        self.restart()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> LoopLag:
        self._task = asyncio.create_task(self._watch(), name="loop-lag")
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def observe(self, late_s: float) -> None:
        """Record one lag, in seconds, with the lags that it hid."""
        late_s = max(0.0, late_s)
        for k in range(int(late_s / self.interval_s) + 1):
            for histogram in (self._step, self._run):
                histogram.add(1e3 * (late_s - k * self.interval_s))

    def restart(self) -> None:
        """Forget all earlier lags: libraries that are imported at the start hold up the loop for seconds."""
        self._step, self._run = LagHistogram(), LagHistogram()

    def pop_step(self) -> Lag:
        """Lag since the last call."""
        step, self._step = self._step, LagHistogram()
        return step.lag()

    def run(self) -> Lag:
        """Lag since the start."""
        return self._run.lag()

    async def _watch(self) -> None:
        while True:
            due_s = time.monotonic() + self.interval_s
            await asyncio.sleep(self.interval_s)
            self.observe(time.monotonic() - due_s)
