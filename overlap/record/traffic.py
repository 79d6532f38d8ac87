"""Counts samples on their way through generator and verifier, and when the engine was busy."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from overlap.core import ClusterFigures, Generator, Part, Request, Scored, Trajectory, Verifier

Span = tuple[float, float]
LEVEL_S = 0.1


class BusyClock:
    """When at least one of many concurrent activities was open. Keeps only the disjoint spans not yet taken."""

    def __init__(self) -> None:
        self._open = 0
        self._paused = False
        self._since = 0.0
        self._spans: list[Span] = []

    def enter(self, at_s: float) -> None:
        """One more activity begins."""
        self._change(self._open + 1, self._paused, at_s)

    def leave(self, at_s: float) -> None:
        """One activity ends."""
        self._change(self._open - 1, self._paused, at_s)

    def pause(self, at_s: float) -> None:
        """Nothing is done until ``resume``, whatever is open."""
        self._change(self._open, True, at_s)

    def resume(self, at_s: float) -> None:
        self._change(self._open, False, at_s)

    def _change(self, open_: int, paused: bool, at_s: float) -> None:
        was, self._open, self._paused = self._busy, open_, paused
        if self._busy and not was:
            self._since = at_s
        if was and not self._busy:
            self._spans.append((self._since, at_s))

    @property
    def _busy(self) -> bool:
        return self._open > 0 and not self._paused

    def pop_spans(self, now_s: float) -> list[Span]:
        """Busy spans since the last ``pop_spans``; one that is still open is cut at ``now_s``."""
        spans, self._spans = self._spans, []
        if self._busy:
            spans.append((self._since, now_s))
            self._since = now_s
        return spans


@dataclass(frozen=True, slots=True)
class Level:
    """Samples in the generator and in the verifier, waiting for it or not, from ``at_s`` on (time.monotonic())."""

    at_s: float
    generating: int
    verifying: int


class Traffic:
    """Wraps generator and verifier; each keeps all of its other methods."""

    def __init__(self, show: Callable[[str], None]) -> None:
        """``show`` gets a line for the progress bar after each generated and each verified sample."""
        self.generating = self.verifying = 0
        self._busy = BusyClock()
        self._show = show
        self._generator: Generator | None = None
        self._verifier: Verifier | None = None
        self._moved_before = 0
        self._levels: list[Level] = []

    def move(self, at_s: float, *, generating: int = 0, verifying: int = 0) -> None:
        """So many samples more are there. Levels that hold for less than ``LEVEL_S`` are not told apart."""
        self.generating += generating
        self.verifying += verifying
        if self._levels and at_s - self._levels[-1].at_s < LEVEL_S:
            at_s = self._levels.pop().at_s
        self._levels.append(Level(at_s, self.generating, self.verifying))

    def pop_levels(self) -> list[Level]:
        """How many samples were on their way, since the last call."""
        levels, self._levels = self._levels, []
        return levels

    def pop_engine_spans(self) -> list[Span]:
        """When the engine had requests and was awake, since the last call."""
        return self._busy.pop_spans(time.monotonic())

    def pop_nodes(self) -> ClusterFigures | None:
        """What the nodes of a cluster did since the last call; None where none judges."""
        return self._verifier.take_nodes() if self._verifier else None

    def pop_moved(self) -> int:
        """Episodes that went from one engine to another, since the last call."""
        before, self._moved_before = self._moved_before, self._generator.moved if self._generator else 0
        return self._moved_before - before

    def generator(self, inner: Generator) -> Generator:
        """``inner``, counted."""
        self._generator = inner
        return cast("Generator", _Generator(self, inner))

    def verifier(self, inner: Verifier) -> Verifier:
        """``inner``, counted."""
        self._verifier = inner
        return cast("Verifier", _Verifier(self, inner))

    def changed(self) -> None:
        """A sample has passed."""
        self._show(f"{self.generating} generating, {self.verifying} verifying")


class _Counted:
    def __init__(self, traffic: Traffic, inner: Any) -> None:
        self._traffic, self._inner = traffic, inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _Generator(_Counted):
    async def generate(self, request: Request) -> Trajectory:
        traffic, began_s = self._traffic, time.monotonic()
        traffic.move(began_s, generating=1)
        traffic._busy.enter(began_s)
        try:
            trajectory: Trajectory = await self._inner.generate(request)
        finally:
            ended_s = time.monotonic()
            traffic.move(ended_s, generating=-1)
            traffic._busy.leave(ended_s)
        traffic.changed()
        return trajectory

    async def sleep(self) -> None:
        await self._inner.sleep()
        self._traffic._busy.pause(time.monotonic())

    async def wake(self, part: Part) -> None:
        await self._inner.wake(part)
        if part == "cache":
            self._traffic._busy.resume(time.monotonic())


class _Verifier(_Counted):
    async def score(self, trajectory: Trajectory) -> Scored:
        traffic = self._traffic
        traffic.move(time.monotonic(), verifying=1)
        try:
            scored: Scored = await self._inner.score(trajectory)
        finally:
            traffic.move(time.monotonic(), verifying=-1)
        traffic.changed()
        return scored
