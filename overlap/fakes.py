"""Seeded doubles behind the same doors: the whole pipeline runs with them on a laptop, in tests and in benchmarks.

What they return depends on (seed, prompt, sample) alone, never on time or order; how long they take is settable.
They are doubles: ``overlap.train`` never uses them.
"""

from __future__ import annotations

import asyncio
import random
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from overlap.clock import now
from overlap.core import Batch, Prompt, Request, Scored, StepReport, Trajectory, VersionSpan, WeightUpdate
from sandbox.pool import Places

Seconds = Callable[[random.Random], float]
"""A law of durations: draws seconds from a seeded generator."""


def _no_time(_: random.Random) -> float:
    return 0.0


def _rng(*key: object) -> random.Random:
    return random.Random(zlib.crc32("/".join(map(str, key)).encode()))


class FakeGenerator:
    """An engine that needs no model. ``slots`` requests decode at once, each for a time drawn from ``seconds``: those
    of the oldest group first.
    """

    def __init__(
        self, *, seed: int = 0, seconds: Seconds = _no_time, slots: int = 10**6, truncated: float = 0.0
    ) -> None:
        self._seed, self._seconds, self._truncated = seed, seconds, truncated
        self._slots = Places(slots)
        self._open, self._closed = asyncio.Event(), asyncio.Event()
        self.version = -1
        self.running = 0
        self.loads: list[int] = []

    async def start(self) -> None:
        return None

    async def generate(self, request: Request) -> Trajectory:
        async with self._slots.place(request.group):
            await self._open.wait()
            self.running += 1
            try:
                return await self._sample(request)
            finally:
                self.running -= 1

    async def _sample(self, request: Request) -> Trajectory:
        rng = _rng(self._seed, request.group, request.prompt.id, request.sample)
        started, first = now(), self.version
        await asyncio.sleep(self._seconds(rng))
        length = rng.randint(1, 16)
        tokens = tuple(rng.choices(range(3, 256), k=length))
        return Trajectory(
            request=request,
            token_ids=tokens,
            logprobs=tuple(-rng.random() for _ in tokens),
            text=f"answer {request.sample} to {request.prompt.id}",
            finish="length" if rng.random() < self._truncated else "stop",
            spans=_spans(first, self.version, length),
            started_s=started,
            finished_s=now(),
        )

    async def load(self, update: WeightUpdate) -> None:
        self.version = update.version
        self.loads.append(update.version)
        self._open.set()

    async def logprobs(self, token_ids: Sequence[int]) -> list[float]:
        return fake_logprobs(self.version, token_ids)

    async def sleep(self) -> None:
        return None

    async def wake(self) -> None:
        return None

    async def wait_dead(self) -> None:
        await self._closed.wait()

    def pids(self) -> tuple[int, ...]:
        return ()

    async def close(self) -> None:
        self._closed.set()


def _spans(first: int, last: int, length: int) -> tuple[VersionSpan, ...]:
    """The response began at version ``first`` and ended at ``last``: half of its tokens each when these differ."""
    if first == last or length < 2:
        return (VersionSpan(first, 0, length),)
    return (VersionSpan(first, 0, length // 2), VersionSpan(last, length // 2, length))


class FakeVerifier:
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
        self._seed, self._seconds, self._solved, self._failed = seed, seconds, solved, failed
        self._workers = Places(workers)

    async def start(self) -> None:
        return None

    async def score(self, trajectory: Trajectory) -> Scored:
        queued = now()
        request = trajectory.request
        rng = _rng("verify", self._seed, request.group, request.prompt.id, request.sample)
        seconds = self._seconds(rng)
        async with self._workers.place(request.group, -seconds):
            started = now()
            await asyncio.sleep(seconds)
        reward = None if rng.random() < self._failed else float(rng.random() < self._solved)
        failure = "" if reward is not None else "fake failure"
        return Scored(trajectory, reward, None, failure, queued, started, now())

    def pids(self) -> tuple[int, ...]:
        return ()

    async def close(self) -> None:
        return None


class FakeLearner:
    """A learner that only counts. It keeps every batch it was given in ``batches``."""

    def __init__(self, *, seed: int = 0, seconds: Seconds = _no_time, first_version: int = 0) -> None:
        self._seed, self._seconds = seed, seconds
        self.version = first_version
        self._closed = asyncio.Event()
        self.batches: list[Batch] = []
        self.published: list[int] = []
        self.retired: list[int] = []

    async def start(self) -> None:
        return None

    async def step(self, batch: Batch) -> StepReport:
        began = now()
        await asyncio.sleep(self._seconds(_rng("learn", self._seed, batch.step)))
        self.batches.append(batch)
        self.version = batch.version + 1
        return StepReport(batch.step, self.version, now() - began, {"loss": 0.0})

    async def publish(self, version: int) -> WeightUpdate:
        self.published.append(version)
        return WeightUpdate(version, "fake", {})

    async def transmit(self, update: WeightUpdate) -> None:
        return None

    async def retire(self, update: WeightUpdate) -> None:
        self.retired.append(update.version)

    async def logprobs(self, token_ids: Sequence[int]) -> list[float]:
        return fake_logprobs(self.version, token_ids)

    async def save(self, path: Path, *, kind: Literal["policy", "state"]) -> int:
        await asyncio.to_thread(path.mkdir, parents=True, exist_ok=True)
        await asyncio.to_thread((path / kind).write_text, f"{self.version}\n")
        return self.version

    async def restore(self, path: Path) -> None:
        self.version = int(await asyncio.to_thread((path / "state").read_text))

    async def wait_dead(self) -> None:
        await self._closed.wait()

    def pids(self) -> tuple[int, ...]:
        return ()

    async def close(self) -> None:
        self._closed.set()


def fake_logprobs(version: int, token_ids: Sequence[int]) -> list[float]:
    """Log-probs [T-1] that tell one version from another."""
    return [-(1.0 + version + token % 7) for token in token_ids[1:]]


def fake_prompts(count: int) -> list[Prompt]:
    """``count`` prompts with distinct ids and a few tokens each."""
    return [Prompt(f"p{i}", tuple(range(3, 8 + i % 5))) for i in range(count)]
