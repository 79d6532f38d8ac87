"""The numbers of a server, as prometheus-client counts and writes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import prometheus_client
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from sandbox.pool.pool import Pool

MEDIA_TYPE: Final = prometheus_client.CONTENT_TYPE_PLAIN_0_0_4
_BUCKETS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
prometheus_client.disable_created_metrics()


class Metrics:
    """The numbers of one server, in a registry of its own."""

    def __init__(self, pool: Pool) -> None:
        self.registry = own = CollectorRegistry()
        counter = prometheus_client.Counter
        self.answers = counter("sandbox_requests", "Answers, by route and status.", ("route", "status"), registry=own)
        self.seconds = prometheus_client.Histogram(
            "sandbox_request_seconds", "Seconds from the head of a request to the end of its answer.",
            buckets=_BUCKETS_S, registry=own,
        )  # fmt: skip
        self.in_hand = prometheus_client.Gauge(
            "sandbox_requests_in_hand", "Requests that are not answered yet.", registry=own
        )
        left = "Clients that left before their answer; their jobs were cancelled."
        self.left = counter("sandbox_clients_left", left, registry=own)
        self.registry.register(_PoolNumbers(pool))

    def text(self) -> bytes:
        """All of them in Prometheus' text format."""
        return prometheus_client.generate_latest(self.registry)


class _PoolNumbers(Collector):
    """Numbers that the pool counts by itself."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def collect(self) -> Iterator[Metric]:
        stats = self._pool.stats()
        verdicts = CounterMetricFamily("sandbox_judgements", "Judgements given, by verdict.", labels=("verdict",))
        for name, count in stats.verdicts.items():
            verdicts.add_metric((name,), count)
        yield verdicts
        for name, meaning, value in (
            ("sandbox_faults", "Tries that failed by a fault of the sandbox, whether a later one succeeded.",
             stats.infrastructure_failures),
            ("sandbox_run_seconds", "Seconds spent on judgements.", stats.busy_s),
            ("sandbox_queue_seconds", "Seconds that judgements waited.", stats.queue_s),
        ):  # fmt: skip
            yield CounterMetricFamily(name, meaning, value)
        for name, meaning, value in (
            ("sandbox_jobs_queued", "Programs that wait for a worker.", stats.queued),
            ("sandbox_jobs_running", "Programs that are being judged.", stats.running),
            ("sandbox_workers", "Programs that can be judged at the same time.", self._pool.workers),
        ):
            yield GaugeMetricFamily(name, meaning, value)
