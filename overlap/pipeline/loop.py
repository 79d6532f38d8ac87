"""The pipeline: ``serial()`` and ``overlapped()``, the same verbs side by side.

     prompts        requests          trajectories          scored            steps
    ────────▶ admit ────────▶ generate ────────▶ verify ────────▶ collect ────────▶ learn ─▶ publish ─▶ load
                ▲ lease                                                                                   │
                └──────────────────────── weights land, leases free, prompts enter ◀──────────────────────┘

``overlapped`` verifies each trajectory the moment it ends, while the rest still generate; with ``max_staleness >= 1``
it generates while the learner learns, too. ``serial`` does one thing after the other: it is the oracle of the batches
(the same, on a seeded fake) and the baseline of every speed-up. No GPU library is imported here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterable, Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from overlap.config import Config
from overlap.core import Batch, Generator, Group, Learner, Prompt, Request, Scored, StepReport, Trajectory, Verifier
from overlap.errors import StageError, StaleBatchError, first_error
from overlap.pipeline.assemble import MAX_EMPTY_STEPS, Assembler, empty_batches
from overlap.pipeline.channel import Channel, ChannelStats
from overlap.pipeline.parity import check_parity
from overlap.pipeline.prompts import PromptStream
from overlap.pipeline.window import Window

STALL_S = 1800.0  # no sample finished for this long: something hangs that no door noticed


class HasId(Protocol):
    @property
    def id(self) -> str: ...


Item = TypeVar("Item", bound=HasId)
Result = TypeVar("Result")
A = TypeVar("A")
B = TypeVar("B")


@dataclass(frozen=True, slots=True)
class Doors:
    """The three parts that do the work."""

    generator: Generator
    verifier: Verifier
    learner: Learner


@dataclass(frozen=True, slots=True)
class StepResult:
    """One finished step. Spans are (start, end) in monotonic seconds; ``report`` is None when nothing was learned.

    ``parity`` is the largest difference of engine and learner log-probs after the sync, nats, over the tokens that
    count in its check (``check_parity``), with which the step ends.
    """

    batch: Batch
    report: StepReport | None
    learn_span: tuple[float, float]
    sync_span: tuple[float, float]
    parity_span: tuple[float, float]
    parity: float
    channels: tuple[ChannelStats, ...] = ()


OnWeights = Callable[[StepResult], Awaitable[None]] | None
"""Awaited after every step, before ``OnStep``: the engine serves its weights, and no group holds its leases yet."""
OnStep = Callable[[StepResult], Awaitable[None]]
"""Awaited after every step, before the next one is learned."""
OnReady = Callable[[], Awaitable[None]] | None
"""Awaited once, when the engine serves its first version and nothing has been admitted yet."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where a run stands: steps taken, the policy version in the learner, groups consumed. Zeros begin a new run."""

    step: int = 0
    version: int = 0
    groups: int = 0


BEGIN = Position()


async def serial(
    doors: Doors,
    cfg: Config,
    prompts: PromptStream,
    on_step: OnStep,
    at: Position = BEGIN,
    on_ready: OnReady = None,
    on_weights: OnWeights = None,
) -> None:
    """Generate all, then verify all, then learn, then load; step by step, one thing after the other."""
    assembler, admitted = Assembler(cfg, at.groups), at.groups
    state = await _first_load(doors, cfg, at, prompts, on_ready)
    for _ in range(at.step, cfg.run.steps):
        while (groups := assembler.next_step()) is None:
            requests: list[Request] = []
            for _ in range(assembler.missing):
                requests += _requests(admitted, assembler.expect(admitted, next(prompts)), cfg)
                admitted += 1
            trajectories = await _all("generate", doors.generator.generate, requests)
            for scored in await _all("verify", doors.verifier.score, trajectories):
                assembler.add(scored)
        result = await state.learn(groups)
        if on_weights is not None:
            await on_weights(result)
        await on_step(result)


async def overlapped(
    doors: Doors,
    cfg: Config,
    prompts: PromptStream,
    on_step: OnStep,
    at: Position = BEGIN,
    on_ready: OnReady = None,
    on_weights: OnWeights = None,
) -> None:
    """All stages at once, in one task group; ends after ``cfg.run.steps`` steps, or with the first error of a stage."""
    state = await _first_load(doors, cfg, at, prompts, on_ready)
    window = Window(cfg, cfg.run.steps - at.step, at.groups)
    assembler = Assembler(cfg, at.groups)
    requests = Channel[Request]("requests", cfg.samples_per_step)
    trajectories = Channel[Trajectory]("trajectories", cfg.samples_per_step)
    scored = Channel[Scored]("scored", cfg.samples_per_step)
    ready = Channel[tuple[Group, ...]]("steps", 1)
    channels: tuple[Channel, ...] = (requests, trajectories, scored, ready)
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_admit(window, assembler, prompts, requests, cfg), name="admit")
            tasks.create_task(_each("generate", requests, doors.generator.generate, trajectories), name="generate")
            tasks.create_task(_each("verify", trajectories, doors.verifier.score, scored), name="verify")
            tasks.create_task(_collect(window, assembler, scored, ready, cfg), name="collect")
            async for groups in ready:
                result = await state.learn(groups, tuple(c.stats for c in channels))
                if on_weights is not None:
                    await on_weights(result)
                window.land(g.id for g in groups if g.id in window.out)
                await on_step(result)
    except BaseExceptionGroup as errors:
        raise (error := first_error(errors)) from error.__cause__
    finally:
        for channel in channels:
            channel.dispose()


async def _admit(
    window: Window, assembler: Assembler, prompts: PromptStream, out: Channel[Request], cfg: Config
) -> None:
    """Let prompt groups in.

    consumes: prompts          produces: G requests per group
    waits for: a free lease    woken by: weights that landed, a dropped group
    """
    while (group := await window.take()) is not None:
        for request in _requests(group, assembler.expect(group, next(prompts)), cfg):
            await out.send(request)
    out.close()


async def _each(
    stage: str, items: AsyncIterable[Item], work: Callable[[Item], Awaitable[Result]], out: Channel[Result]
) -> None:
    """Generate, or verify: work on every item as it comes, and hand over each result the moment it is there.

    consumes: requests (trajectories)        produces: trajectories (scored samples)
    waits for: the engine (a verifier)       woken by: the end of one sample
    """

    async def one(item: Item) -> None:
        with named(stage, item.id):
            result = await work(item)
        await out.send(result)

    async with asyncio.TaskGroup() as tasks:
        async for item in items:
            tasks.create_task(one(item), name=f"{stage} {item.id}")
    out.close()


async def _collect(
    window: Window, assembler: Assembler, samples: Channel[Scored], out: Channel[tuple[Group, ...]], cfg: Config
) -> None:
    """Group samples, and groups into steps.

    consumes: scored samples               produces: the groups of a step
    waits for: the last sample of a step   woken by: each scored sample
    """
    while (sample := await _receive(samples, assembler)) is not None:
        group = assembler.add(sample)
        if group is not None and group.dropped and cfg.rollout.refill_dropped:
            window.drop(group.id)
        while (groups := assembler.next_step()) is not None:
            await out.send(groups)
    out.close()


async def _receive(samples: Channel[Scored], assembler: Assembler) -> Scored | None:
    while True:
        try:
            async with asyncio.timeout(STALL_S):
                return await anext(samples, None)
        except TimeoutError as error:
            if not (pending := sorted(assembler.running)):
                continue  # an evaluation or the learner has its turn, and a deadline of its own
            names = ", ".join(pending[:8])
            cause = TimeoutError(f"nothing for {STALL_S:g} s, {len(pending)} pending")
            raise StageError("collect", names, cause) from error


class _Learning:
    """The learner's side of the loop: learn, publish, load, and the version that this leads to."""

    def __init__(self, doors: Doors, cfg: Config, at: Position) -> None:
        self.doors, self.cfg, self.version = doors, cfg, at.version
        self._step = at.step
        self._empty: list[Group] = []

    async def learn(self, groups: tuple[Group, ...], channels: tuple[ChannelStats, ...] = ()) -> StepResult:
        """One step: the learner takes the kept groups, its new weights go back into the engine."""
        self._step += 1
        kept = tuple(g for g in groups if not g.dropped)
        batch = Batch(self._step, self.version, kept, tuple(g for g in groups if g.dropped))
        began = time.monotonic()
        if not kept:
            self._refuse_more_empty_steps(groups)
            return StepResult(batch, None, (began, began), (began, began), (began, began), 0.0, channels)
        self._empty.clear()
        check_age(batch, self.cfg.rollout.max_staleness)
        with named("learn", f"step {batch.step}"):
            await self.doors.generator.sleep()
            report = await self.doors.learner.step(batch)
            await self.doors.generator.wake()
        learned = time.monotonic()
        await self.load(report.version)
        loaded = time.monotonic()
        with named("load", f"version {report.version}"):
            gap = await self.check_parity(batch.samples[0].trajectory)
        spans = (began, learned), (learned, loaded), (loaded, time.monotonic())
        return StepResult(batch, report, *spans, gap, channels)

    async def load(self, version: int) -> None:
        """Bring version ``version`` of the weights from the learner into the engine."""
        generator, learner = self.doors.generator, self.doors.learner
        with named("load", f"version {version}"):
            update = await learner.publish(version)
            try:
                await _both(generator.load(update), learner.transmit(update))
            finally:
                await learner.retire(update)
            self.version = version

    async def check_parity(self, probe: Trajectory) -> float:
        """Largest difference of engine and learner log-probs on a prompt and its response, nats."""
        token_ids = (*probe.request.prompt.token_ids, *probe.token_ids)[: self.cfg.model.context_tokens]
        ours, theirs = await _both(self.doors.generator.logprobs(token_ids), self.doors.learner.logprobs(token_ids))
        exact = self.cfg.model.dtype == "float32"
        return check_parity(ours, theirs, bound=self.cfg.parity_bound, version=self.version, exact=exact)

    def _refuse_more_empty_steps(self, groups: tuple[Group, ...]) -> None:
        self._empty.extend(groups)
        if len(self._empty) >= MAX_EMPTY_STEPS * self.cfg.rollout.groups_per_step:
            raise empty_batches(self._empty)


def check_age(batch: Batch, max_staleness: int) -> None:
    """Check the promise of the lease where it is spent. Raises StaleBatchError."""
    for scored in batch.samples:
        age = batch.version - scored.trajectory.version_min
        if scored.trajectory.spans and not 0 <= age <= max_staleness:
            raise StaleBatchError(
                f"sample {scored.id} is {age} versions old at step {batch.step}, rollout.max_staleness={max_staleness}"
            )


async def _first_load(doors: Doors, cfg: Config, at: Position, prompts: PromptStream, on_ready: OnReady) -> _Learning:
    """Bring the first version into the engine and check it on a response to the first prompt, which is thrown away."""
    state = _Learning(doors, cfg, at)
    await state.load(at.version)
    with named("load", f"version {at.version}"):
        await state.check_parity(await doors.generator.generate(Request(-1, 0, prompts.peek())))
    if on_ready is not None:
        await on_ready()
    return state


def _requests(group: int, prompt: Prompt, cfg: Config) -> list[Request]:
    return [Request(group, k, prompt) for k in range(cfg.rollout.samples_per_group)]


async def _all(stage: str, work: Callable[[Item], Awaitable[Result]], items: Iterable[Item]) -> list[Result]:
    async def one(item: Item) -> Result:
        with named(stage, item.id):
            return await work(item)

    try:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(one(item)) for item in items]
    except BaseExceptionGroup as errors:
        raise (error := first_error(errors)) from error.__cause__
    return [task.result() for task in running]


async def _both(first: Coroutine[Any, Any, A], second: Coroutine[Any, Any, B]) -> tuple[A, B]:
    """Await two things at once; when one fails the other is cancelled, not abandoned."""

    try:
        async with asyncio.TaskGroup() as tasks:
            a, b = tasks.create_task(first), tasks.create_task(second)
    except BaseExceptionGroup as errors:
        raise (error := first_error(errors)) from error.__cause__
    return a.result(), b.result()


@contextmanager
def named(stage: str, sample: str) -> Iterator[None]:
    """An error inside becomes a StageError that says where; one that is one already stays."""
    try:
        yield
    except (StageError, asyncio.CancelledError):
        raise
    except Exception as error:
        raise StageError(stage, sample, error) from error
