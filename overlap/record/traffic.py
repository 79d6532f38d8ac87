"""Counts samples on their way through generator and verifier, and when the engine was busy."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from overlap.core import ClusterFigures, Generator, Part, Request, Scored, Trajectory, Verifier

Span = tuple[float, float]


class Traffic:
    """Counts what passes the generator and the verifier of a run. The engine is busy while it has requests and is
    awake. ``show`` gets a line for the progress bar after each generated and each verified sample.
    """

    def __init__(self, show: Callable[[str], None]) -> None:
        self.generating = self.verifying = 0
        self._show = show
        self._asleep, self._busy_since_s = False, 0.0
        self._spans: list[Span] = []
        self._generator: Generator | None = None
        self._verifier: Verifier | None = None
        self._moved_before = 0

    def generator(self, inner: Generator) -> Generator:
        """``inner``, counted."""
        self._generator = inner
        return cast("Generator", _Generator(self, inner))

    def verifier(self, inner: Verifier) -> Verifier:
        """``inner``, counted."""
        self._verifier = inner
        return cast("Verifier", _Verifier(self, inner))

    @contextmanager
    def passing(self, *, generating: int = 0, verifying: int = 0) -> Iterator[None]:
        """Count these numbers of samples inside the block."""
        self._change(generating, verifying)
        try:
            yield
        finally:
            self._change(-generating, -verifying)
        self._show(f"{self.generating} generating, {self.verifying} verifying")

    def rest(self, asleep: bool) -> None:
        """The engine falls asleep, or wakes: until it wakes it does no work, whatever requests it has."""
        self._change(asleep=asleep)

    def _change(self, generating: int = 0, verifying: int = 0, *, asleep: bool | None = None) -> None:
        was_busy = self._busy
        self.generating += generating
        self.verifying += verifying
        self._asleep = self._asleep if asleep is None else asleep
        if self._busy and not was_busy:
            self._busy_since_s = time.monotonic()
        if was_busy and not self._busy:
            self._spans.append((self._busy_since_s, time.monotonic()))

    @property
    def _busy(self) -> bool:
        return self.generating > 0 and not self._asleep

    def pop_engine_spans(self) -> list[Span]:
        """Spans in which the engine was busy, since the last call; a span that is still open is cut now."""
        spans, self._spans = self._spans, []
        if self._busy:
            now_s = time.monotonic()
            spans.append((self._busy_since_s, now_s))
            self._busy_since_s = now_s
        return spans

    def pop_nodes(self) -> ClusterFigures | None:
        """Figures of a cluster's nodes since the last call; None where no node judges."""
        return self._verifier.take_nodes() if self._verifier else None

    def pop_moved(self) -> int:
        """Episodes that went from one engine to another, since the last call."""
        before, self._moved_before = self._moved_before, self._generator.moved if self._generator else 0
        return self._moved_before - before


class _Counted:
    """A part with all of its methods, some of which are counted."""

    def __init__(self, traffic: Traffic, inner: Any) -> None:
        self._traffic, self._inner = traffic, inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _Generator(_Counted):
    async def generate(self, request: Request) -> Trajectory:
        with self._traffic.passing(generating=1):
            return cast("Trajectory", await self._inner.generate(request))

    async def sleep(self) -> None:
        await self._inner.sleep()
        self._traffic.rest(asleep=True)

    async def wake(self, part: Part) -> None:
        await self._inner.wake(part)
        if part == "cache":
            self._traffic.rest(asleep=False)


class _Verifier(_Counted):
    async def score(self, trajectory: Trajectory) -> Scored:
        with self._traffic.passing(verifying=1):
            return cast("Scored", await self._inner.score(trajectory))
