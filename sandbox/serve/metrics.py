"""The numbers of a server, as prometheus-client counts and writes them; sums over the server's processes."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final

import prometheus_client
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector, CollectorRegistry

from sandbox.pool.counts import PoolStats
from sandbox.pool.pool import Pool
from sandbox.serve.shared_counts import SharedCounts

MEDIA_TYPE: Final = prometheus_client.CONTENT_TYPE_PLAIN_0_0_4
IN_HAND: Final = "sandbox_requests_in_hand"
_BUCKETS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
prometheus_client.disable_created_metrics()


class Metrics:
    """The numbers of this process, in a registry of its own, and beside them what the others wrote into ``shared``."""

    def __init__(self, pool: Pool, shared: SharedCounts) -> None:
        self.registry, self._shared = CollectorRegistry(), shared
        self.answers = prometheus_client.Counter(
            "sandbox_requests", "Answers, by route and status.", ("route", "status"), registry=self.registry
        )
        self.seconds = prometheus_client.Histogram(
            "sandbox_request_seconds", "Seconds from the head of a request to the end of its answer.",
            buckets=_BUCKETS_S, registry=self.registry,
        )  # fmt: skip
        self.in_hand = prometheus_client.Gauge(IN_HAND, "Requests that are not answered yet.", registry=self.registry)
        self.held_bytes = prometheus_client.Gauge(
            "sandbox_body_bytes_in_hand", "Bytes of their bodies.", registry=self.registry
        )
        self.left = prometheus_client.Counter(
            "sandbox_clients_left", "Clients that left before their answer; their jobs were cancelled.",
            registry=self.registry,
        )  # fmt: skip
        self.registry.register(_PoolNumbers(pool))

    def share(self) -> None:
        """Make the numbers of this process known to the others."""
        self._shared.write(prometheus_client.generate_latest(self.registry))

    def text(self) -> bytes:
        """The sums in Prometheus' text format."""
        self.share()
        return prometheus_client.generate_latest(_Sums(self._shared))


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
        for name, meaning, value in _counters(stats):
            yield CounterMetricFamily(name, meaning, value)
        for name, meaning, value in self._gauges(stats):
            yield GaugeMetricFamily(name, meaning, value)

    def _gauges(self, stats: PoolStats) -> Iterable[tuple[str, str, float]]:
        return (
            ("sandbox_jobs_queued", "Programs that wait for a worker.", stats.queued),
            ("sandbox_jobs_running", "Programs that are being judged.", stats.running),
            ("sandbox_workers", "Programs that can be judged at the same time.", self._pool.workers),
            ("sandbox_server_processes", "Processes that serve.", 1),
            ("sandbox_server_resident_bytes", "Their resident memory, without the judges'.", _resident_bytes()),
        )


def _counters(stats: PoolStats) -> Iterable[tuple[str, str, float]]:
    return (
        ("sandbox_judgements_shared", "Judgements given that were made for an equal program.", stats.cache_hits),
        ("sandbox_runs", "Runs of programs without a verdict.", stats.runs),
        ("sandbox_faults", "Tries that failed by a fault of the sandbox, whether a later one succeeded.",
         stats.infrastructure_failures),
        ("sandbox_recycled", "Jails and workers replaced because of their age or their memory.", stats.recycled),
        ("sandbox_run_seconds", "Seconds spent on judgements.", stats.busy_s),
        ("sandbox_queue_seconds", "Seconds that judgements waited.", stats.queue_s),
    )  # fmt: skip


class _Sums(Collector):
    """The numbers of all processes, added up."""

    def __init__(self, shared: SharedCounts) -> None:
        self._shared = shared

    def collect(self) -> Iterator[Metric]:
        families = dict[str, Metric]()
        sums = defaultdict[tuple[str, str, tuple[tuple[str, str], ...]], float](float)
        for text in self._shared.texts():
            for family in text_string_to_metric_families(text):
                families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    sums[family.name, sample.name, tuple(sample.labels.items())] += sample.value
        for (family_name, name, labels), value in sums.items():
            families[family_name].add_sample(name, dict(labels), value)
        yield from families.values()


def in_hand(shared: SharedCounts) -> int:
    """Requests in hand of all processes, as they last said."""
    families = _Sums(shared).collect()
    return int(sum(sample.value for family in families if family.name == IN_HAND for sample in family.samples))


def _resident_bytes() -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * _PAGE
