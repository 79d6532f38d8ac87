"""State that the routes share: the pool, the sessions, problems that came before, and how many requests may be in hand.

    admitted() ──▶ the bytes of its body are counted ──▶ released
        └─▶ Busy: too many requests, too many bytes, or the server drains

waits for nothing; `drained` waits for the requests in hand
"""

from __future__ import annotations

import asyncio
import hashlib
import marshal
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import prometheus_client
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from sandbox.core.checks import quoted
from sandbox.core.nouns import MIB
from sandbox.core.problem import Problem
from sandbox.pool.pool import Pool
from sandbox.serve.answers import Busy, Draining, Refused
from sandbox.serve.bounds import SESSION_LIMITS, Bounds, check_parsed
from sandbox.session.sessions import Sessions

MEDIA_TYPE: Final = prometheus_client.CONTENT_TYPE_PLAIN_0_0_4
_BUCKETS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
KEPT_BYTES: Final = 256 * MIB
_CASE_BYTES: Final = 500
"""Bytes of a case beside its texts, and of its JSON object."""
_NO_REFERENCES: Final = 2
"""The version of marshal whose bytes follow from the values alone, and not from what else refers to them."""
prometheus_client.disable_created_metrics()


class KeptProblems:
    """The problems that were used last, together of about the given number of bytes at most: many programs are sent for
    one, and each brings it whole. An equal JSON object gives the same Problem, which is then neither checked nor sent
    to the pool's supervisor again.
    """

    def __init__(self, bytes_max: int = KEPT_BYTES) -> None:
        self.bytes_max, self.bytes = bytes_max, 0
        self._names: dict[int, str] = {}
        self._kept: OrderedDict[str, tuple[Problem, int]] = OrderedDict()

    def find(self, given: Any) -> Problem:
        """The problem that a JSON object holds. Raises InvalidProblem."""
        try:
            packed = marshal.dumps(given, _NO_REFERENCES)
        except ValueError:  # nested too deep for a problem
            return Problem.of(given)
        name = f"kept:{hashlib.sha256(packed).hexdigest()}"
        if (kept := self._kept.get(name)) is None:
            problem = Problem.of(given)
            kept = self._kept[name] = problem, len(packed) + _CASE_BYTES * len(problem.cases)
            self.bytes += kept[1]
            self._names[id(problem)] = name
        self._kept.move_to_end(name)
        while self.bytes > self.bytes_max and len(self._kept) > 1:
            problem, size = self._kept.popitem(last=False)[1]
            self.bytes -= size
            del self._names[id(problem)]
        return kept[0]

    def name(self, problem: Problem) -> str:
        """The name by which a client may ask for it again; it follows from the content. "" where it is not kept."""
        return self._names.get(id(problem), "")

    def named(self, name: str) -> Problem:
        """The problem of this name, while it is kept. Raises Refused."""
        if name not in self._kept:
            raise Refused(409, f"problem={quoted(name)}: is not kept here, or not any more: send it whole")
        return self._kept[name][0]


@dataclass(eq=False)
class Service:
    """See the module. Belongs to one event loop; `aclose` ends pool and sessions."""

    pool: Pool
    bounds: Bounds = field(default_factory=Bounds)
    token: str = ""
    """Token that a client has to send; "" for none."""
    packages: tuple[str, ...] = ()
    """Names of installed packages that Python programs may import; those of the pool."""
    in_hand: int = 0
    """Requests."""
    held_bytes: int = 0
    draining: bool = False
    problems: KeptProblems = field(default_factory=KeptProblems)
    _none_in_hand: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.metrics = Metrics(self.pool)
        self.metrics.in_hand.set_function(lambda: self.in_hand)

    @cached_property
    def sessions(self) -> Sessions:
        """Python programs that keep their state: nothing is started before the first call. Who calls sets the time."""
        pool, most = self.pool, self.bounds.sessions
        return Sessions(
            most,
            at_once=min(pool.workers, most),
            isolation=pool.isolation,
            limits=SESSION_LIMITS,
            packages=self.packages,
            shown_bytes=SESSION_LIMITS.output_bytes,
        )

    def problem(self, given: Any) -> Problem:
        """The problem of a JSON object, or the one that is kept by this name. Equal objects give the same problem,
        which is checked and sent to the pool once. Raises Refused, and InvalidProblem, also where parsing its texts
        would hold every other client up.
        """
        if isinstance(given, str):
            return self.problems.named(given)
        check_parsed(given)
        return self.problems.find(given)

    @contextmanager
    def admitted(self) -> Iterator[Callable[[int], None]]:
        """Hold a place for one request; yields what counts bytes of its body, and raises Busy where all bodies together
        would be too long. Raises Busy.
        """
        if self.draining:
            raise Draining("the server drains, and will end")
        if self.in_hand >= self.bounds.queue:
            raise Busy(f"{self.in_hand} requests are in hand; at most {self.bounds.queue} are taken (--queue)")
        own, most = 0, self.bounds.held_bytes

        def add(count: int) -> None:
            nonlocal own
            if self.held_bytes + count > most:
                raise Busy(f"the requests in hand have {self.held_bytes} bytes; at most {most} are held")
            own += count
            self.held_bytes += count

        self.in_hand += 1
        self._none_in_hand.clear()
        try:
            yield add
        finally:
            self.in_hand -= 1
            self.held_bytes -= own
            if not self.in_hand:
                self._none_in_hand.set()

    async def drained(self, seconds: float) -> bool:
        """Refuse new requests, and wait at most `seconds` for those in hand. Returns whether all have ended."""
        self.draining = True
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.in_hand:
                    await self._none_in_hand.wait()
        return not self.in_hand

    async def aclose(self) -> None:
        """End the processes of the pool and of the sessions. Safe to call twice."""
        self.draining = True
        if "sessions" in self.__dict__:
            await self.sessions.close()
        await self.pool.close()


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
