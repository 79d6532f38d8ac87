"""Seeded doubles behind the same doors: the whole pipeline runs with them on a laptop, in tests and in benchmarks.

What they return depends on (seed, prompt, sample) alone, never on time or order; how long they take is settable.
They are doubles: ``overlap.train`` never uses them.
"""

from __future__ import annotations

import asyncio
import math
import random
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from overlap.core import (
    Batch,
    Finish,
    Prompt,
    Request,
    Scored,
    StepReport,
    Trajectory,
    VersionSpan,
    WeightUpdate,
)
from overlap.core.clock import EPSILON_S, PausableClock, now
from overlap.core.interfaces import Processless, ProcesslessEngine, ProcesslessVerifier
from sandbox.pool.slots import Slots

Seconds = Callable[[random.Random], float]
"""A law of durations: draws seconds from a seeded generator."""


KEPT_LOADS = 64
"""Loads that a running sample can have seen."""


def _no_time(_: random.Random) -> float:
    return 0.0


def _rng(*key: object) -> random.Random:
    return random.Random(zlib.crc32("/".join(map(str, key)).encode()))


class FakeGenerator(ProcesslessEngine):
    """An engine that needs no model. ``slots`` requests decode at once, each for a time drawn from ``seconds``: those
    of the oldest group first. A load takes ``load_s`` seconds, in which nothing is decoded, nor while it sleeps; by
    ``landing`` a load or a sleep first waits for all that is running ("drain"), or the load takes ``recompute_s``
    longer for each running sample ("recompute").
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        seconds: Seconds = _no_time,
        slots: int = 10**6,
        truncated: float = 0.0,
        landing: Literal["keep", "recompute", "drain"] = "keep",
        load_s: float = 0.0,
        recompute_s: float = 0.0,
    ) -> None:
        super().__init__()
        self._seed, self._seconds, self._truncated = seed, seconds, truncated
        self._landing, self._load_s, self._recompute_s = landing, load_s, recompute_s
        self._slots = Slots(slots)
        self._open, self._empty = asyncio.Event(), asyncio.Event()
        self._decoded, self._asleep = PausableClock(), False
        self._landed: list[tuple[float, int]] = []
        self.version = -1
        self.running = 0
        self.loads: list[int] = []

    async def generate(self, request: Request) -> Trajectory:
        async with self._slots.place(request.group):
            while not self._open.is_set():  # it may be shut again before the waiting calls go on
                await self._open.wait()
            self.running += 1
            try:
                return await self._sample(request)
            finally:
                self.running -= 1
                if not self.running:
                    self._empty.set()

    async def _sample(self, request: Request) -> Trajectory:
        rng = _rng(self._seed, request.group, request.prompt.id, request.sample)
        started = now()
        began, seconds = self._decoded.now(), self._seconds_of(request, rng)
        first = self.version
        await self._decoded.sleep(seconds)
        tokens, logprobs, finish = self._answer(request, rng)
        return Trajectory(
            request=request,
            token_ids=tokens,
            logprobs=logprobs,
            text=f"answer {request.sample} to {request.prompt.id}",
            finish=finish,
            spans=self._spans(first, began, seconds, len(tokens)),
            started_s=started,
            finished_s=now(),
        )

    def _seconds_of(self, request: Request, rng: random.Random) -> float:
        return self._seconds(rng)

    def _answer(self, request: Request, rng: random.Random) -> tuple[Sequence[int], Sequence[float], Finish]:
        tokens = tuple(rng.choices(range(3, 256), k=rng.randint(1, 16)))
        logprobs = tuple(-rng.random() for _ in tokens)
        return tokens, logprobs, "length" if rng.random() < self._truncated else "stop"

    def _spans(self, first: int, began: float, seconds: float, length: int) -> tuple[VersionSpan, ...]:
        """Tokens come at an even pace; each is of the version that was loaded then."""
        spans, start, version = list[VersionSpan](), 0, first
        for at, landed in self._landed:
            crossed = seconds and at > began + EPSILON_S
            token = min(length, math.ceil(length * (at - began) / seconds)) if crossed else 0
            if token > start:
                spans.append(VersionSpan(version, start, token))
                start = token
            version = landed if at >= began else version
        return (*spans, VersionSpan(version, start, length)) if start < length else tuple(spans)

    async def load(self, update: WeightUpdate) -> None:
        await self._drain()
        self._decoded.pause()
        await asyncio.sleep(self._load_s + (self._recompute_s * self.running if self._landing == "recompute" else 0.0))
        self.version = update.version
        self._landed = [*self._landed[-KEPT_LOADS:], (self._decoded.now(), update.version)]
        self.loads.append(update.version)
        if not self._asleep:
            self._go_on()

    async def sleep(self) -> None:
        """Keep what is running until ``wake`` of the cache; new requests wait for that."""
        self._open.clear()
        await self._drain()
        self._decoded.pause()
        self._asleep = True

    async def wake(self, part: str) -> None:
        """Go on with the version that was loaded last, where the cache wakes and there is one."""
        if part == "cache":
            self._asleep = False
            if self.loads:
                self._go_on()

    async def _drain(self) -> None:
        if self._landing == "drain" and not self._asleep:
            self._open.clear()
            while self.running:
                self._empty.clear()
                await self._empty.wait()

    def _go_on(self) -> None:
        self._decoded.resume()
        self._open.set()

    async def logprobs(self, token_ids: Sequence[int]) -> list[float]:
        return fake_logprobs(self.version, token_ids)


class FakeVerifier(ProcesslessVerifier):
    """``workers`` verifiers, each busy for a time drawn from ``seconds``; rewards are 1 with chance ``solved``.

    Of the samples that wait, those of the oldest group are next, and of these the longest.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        seconds: Seconds = _no_time,
        workers: int = 10**6,
        solved: float = 0.5,
        failed: float = 0.0,
    ) -> None:
        super().__init__()
        self._seed, self._seconds, self._solved, self._failed = seed, seconds, solved, failed
        self.concurrency, self._workers = workers, Slots(workers)

    async def score(self, trajectory: Trajectory) -> Scored:
        queued = now()
        request = trajectory.request
        rng = _rng("verify", self._seed, request.group, request.prompt.id, request.sample)
        seconds = self._seconds_of(request, rng)
        async with self._workers.place(request.group, -seconds):
            started = now()
            await asyncio.sleep(seconds)
        reward = self._judged(request, rng)
        failure = "" if reward is not None else "fake failure"
        return Scored(trajectory, reward, None, failure, queued, started, now())

    def _seconds_of(self, request: Request, rng: random.Random) -> float:
        return self._seconds(rng)

    def _judged(self, request: Request, rng: random.Random) -> float | None:
        return None if rng.random() < self._failed else float(rng.random() < self._solved)


class FakeLearner(Processless):
    """A learner that only counts. It keeps every batch it was given in ``batches``. One that ``shares`` its devices has
    the engine sleep while it learns.
    """

    shares = False

    def __init__(
        self, *, seed: int = 0, seconds: Seconds = _no_time, first_version: int = 0, shares: bool = False
    ) -> None:
        super().__init__()
        self.shares = self.shares or shares
        self._seed, self._seconds = seed, seconds
        self.version = first_version
        self.batches: list[Batch] = []
        self.published: list[int] = []
        self.retired: list[int] = []

    async def step(self, batch: Batch) -> StepReport:
        began = now()
        await asyncio.sleep(self._seconds_of(batch))
        self.batches.append(batch)
        self.version = batch.version + 1
        return StepReport(batch.step, self.version, now() - began, {"loss": 0.0})

    def _seconds_of(self, batch: Batch) -> float:
        return self._seconds(_rng("learn", self._seed, batch.step))

    async def publish(self, version: int) -> WeightUpdate:
        self.published.append(version)
        return WeightUpdate(version, "fake", {})

    async def transmit(self, update: WeightUpdate) -> None:
        return None

    async def retire(self, update: WeightUpdate, *, loaded: bool = True) -> None:
        self.retired.append(update.version)

    async def sleep(self) -> None:
        """Do nothing: there is no device."""

    async def free(self, moment: str) -> float | None:
        return None

    async def logprobs(self, token_ids: Sequence[int]) -> list[float]:
        return fake_logprobs(self.version, token_ids)

    async def save(self, path: Path, *, kind: Literal["policy", "state"]) -> int:
        await asyncio.to_thread(path.mkdir, parents=True, exist_ok=True)
        await asyncio.to_thread((path / kind).write_text, f"{self.version}\n")
        return self.version

    async def restore(self, path: Path) -> None:
        self.version = int(await asyncio.to_thread((path / "state").read_text))


def fake_logprobs(version: int, token_ids: Sequence[int]) -> list[float]:
    """Log-probs [T-1] that tell one version from another."""
    return [-(1.0 + version + token % 7) for token in token_ids[1:]]


def fake_prompts(count: int) -> list[Prompt]:
    """``count`` prompts with distinct ids and a few tokens each."""
    return [Prompt(f"p{i}", tuple(range(3, 8 + i % 5))) for i in range(count)]
