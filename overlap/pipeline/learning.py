"""The learner's side of the loop: learn, publish, load, and the version that this leads to.

Where engine and learner share devices, they free memory in an order in which both never need more than there is:

    engine sleeps ─▶ critic comes, learns, leaves ─▶ policy comes, learns, its states leave ─▶ engine's weights wake
         ▲                                                                                            │
         │                                                                                 weights go over, in chunks
         └─── generates ◀── KV cache wakes, knows nothing ◀── the policy's parameters leave ◀─────────┘

Responses that are not at their end when the engine is put to sleep are kept, and go on when the cache wakes: they are
of later steps (``rollout.max_staleness``). What happens inside the learner's step is the learner's
(``overlap.learner.offload``). The KV cache, the largest piece, wakes when nothing of the learner is left beside it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from overlap.config.fields import Config
from overlap.core import Batch, Generator, Group, Learner, Scored, StepReport, Trajectory, Verifier
from overlap.core.aio import together
from overlap.core.clock import PausableClock, now
from overlap.core.errors import EngineLost, StaleBatchError, naming_stage
from overlap.pipeline.assemble import MAX_EMPTY_STEPS, empty_batches
from overlap.pipeline.control import LoopState
from overlap.pipeline.parity import check_parity, engine_by_engine
from overlap.pipeline.prompts import solves

T = TypeVar("T")
_SLEEP, _LEAVE = "putting the engine to sleep", "the learner's parameters leave"


class Sharing:
    """Handover of one device between ``generator`` and ``learner``. ``free`` is GiB of it by moment, as they were at
    the last time; empty where it is not known. ``clock`` pauses while the engine sleeps.
    """

    def __init__(self, generator: Generator, learner: Learner) -> None:
        self._generator, self._learner = generator, learner
        self.free: dict[str, float] = {}
        self.clock = PausableClock()

    async def to_learner(self, stage: str, sample: str) -> None:
        """The engine sleeps. Raises StageError."""
        await self._phase(stage, sample, _SLEEP, self._sleep(), "engine_asleep")

    async def to_nobody(self, version: int) -> None:
        """Both sleep, also what has only just come up. Raises StageError."""
        await self._phase("load", f"version {version}", _SLEEP, self._sleep())
        await self._phase("load", f"version {version}", _LEAVE, self._learner.sleep())

    async def to_engine(
        self, version: int, send: Callable[[], Awaitable[None]], token_ids: Sequence[int] | None
    ) -> list[float] | None:
        """The engine wakes with what ``send`` brings into it. Returns the learner's log-probs of ``token_ids``, which
        are taken while its parameters are still there. Raises StageError, which names the phase.
        """
        sample, found = f"version {version}", None
        await self._phase("load", sample, _SLEEP, self._sleep())  # one that died may be up again, and awake
        await self._phase(
            "load", sample, "waking the engine's weights", self._generator.wake("weights"), "weights_awake"
        )
        await self._phase("load", sample, "sending the weights", send(), "weights_sent")
        if token_ids is not None:
            work = self._learner.logprobs(token_ids)
            found = await self._phase("load", sample, "computing the learner's log-probs", work)
        await self._phase("load", sample, _LEAVE, self._learner.sleep(), "parameters_left")
        await self._phase("load", sample, "waking the KV cache", self._generator.wake("cache"), "cache_awake")
        self.clock.resume()
        return found

    async def _sleep(self) -> None:
        await self._generator.sleep()
        self.clock.pause()

    async def _phase(self, stage: str, sample: str, what: str, work: Awaitable[T], moment: str = "") -> T:
        """Do ``work``; an error says what was done. Afterwards, free memory is noted as of ``moment``."""
        with naming_stage(stage, f"{sample}, while {what}"):
            result = await work
        if moment and (free := await self._learner.free(moment)) is not None:
            self.free[moment] = free
        return result


@dataclass(frozen=True, slots=True)
class Components:
    """The three parts that do the work."""

    generator: Generator
    verifier: Verifier
    learner: Learner


@dataclass(frozen=True, slots=True)
class StepResult:
    """One finished step. Spans are (start, end) in monotonic seconds; ``report`` is None when nothing was learned.

    ``parity`` is the largest difference of engine and learner log-probs after the sync, nats, over the tokens that
    count in its check (``check_parity``), with which the step ends. ``carried`` are the results that no step has taken
    yet: with them, and the position behind this step, a run goes on as if it had not been cut here. ``free`` are GiB
    of a device that engine and learner share, by the moments of the step (``Sharing``).
    """

    batch: Batch
    report: StepReport | None
    learn_span: tuple[float, float]
    sync_span: tuple[float, float]
    parity_span: tuple[float, float]
    parity: float
    loop: LoopState | None = None
    carried: tuple[Scored, ...] = ()
    free: Mapping[str, float] = field(default_factory=dict)


class Learning:
    """Steps and loads, one at a time. ``version`` is the policy version in the learner, and in the engine. ``awake`` is
    a clock that pauses while the engine sleeps.
    """

    def __init__(self, components: Components, cfg: Config, step: int, version: int) -> None:
        self.components, self.cfg, self.version = components, cfg, version
        self._step = step
        self._empty: list[Group] = []
        self._turn = asyncio.Lock()
        self._sharing = Sharing(components.generator, components.learner)
        self.awake = self._sharing.clock

    async def learn(self, groups: tuple[Group, ...]) -> StepResult:
        """One step: the learner takes the kept groups, its new weights go back into the engine. Raises
        StaleBatchError, StageError, EmptyBatchesError.
        """
        async with self._turn:
            self._step += 1
            kept = tuple(g for g in groups if not g.dropped)
            batch = Batch(self._step, self.version, kept, tuple(g for g in groups if g.dropped))
            began = now()
            if not kept:
                self._refuse_more_empty_steps(groups)
                return StepResult(batch, None, (began, began), (began, began), (began, began), 0.0)
            self._empty.clear()
            if stale := batch.too_old(self.cfg.rollout.max_staleness):  # the promise of the lease, where it is spent
                raise StaleBatchError(stale)
            with naming_stage("learn", step := f"step {batch.step}"):
                if self.components.learner.shares:
                    await self._sharing.to_learner("learn", step)
                report = await self.components.learner.step(batch)
            learned = now()
            loaded, gap = await self._serve(report.version, probe(batch))
            free = dict(self._sharing.free)
            return StepResult(batch, report, (began, learned), (learned, loaded), (loaded, now()), gap, free=free)

    async def _serve(self, version: int, sample: Trajectory) -> tuple[float, float]:
        """Return when ``version`` was loaded, and its ``check_parity``; both anew if an engine dies over them."""
        token_ids = self._of(sample)
        while True:
            learners = await self._load(version, token_ids)
            loaded = now()
            with naming_stage("load", f"version {version}"), suppress(EngineLost):
                return loaded, await self.check_parity(sample, learners)

    async def check(self, sample: Trajectory) -> None:
        """``check_parity`` of what is loaded. Where a device is shared that is loaded anew, for the learner must
        compute its part before its parameters leave.
        """
        if not self.components.learner.shares:
            await self.check_parity(sample)
            return
        async with self._turn:
            await self._serve(self.version, sample)

    async def load(self) -> None:
        """Bring the learner's version into the engine."""
        async with self._turn:
            if self.components.learner.shares:
                await self._sharing.to_nobody(self.version)
            await self._load(self.version)

    async def serve_again(self) -> None:
        """Without end: an engine that has come up again gets the weights that it lacks, between two steps."""
        while True:
            await self.components.generator.wants_weights()
            await self.load()

    async def _load(self, version: int, token_ids: Sequence[int] | None = None) -> list[float] | None:
        """Load ``version``; on a shared device, return the learner's log-probs of ``token_ids``, before it leaves."""
        found = None
        if self.components.learner.shares:
            found = await self._sharing.to_engine(version, partial(self._send, version), token_ids)
        else:
            with naming_stage("load", f"version {version}"):
                await self._send(version)
        self.version = version
        return found

    async def _send(self, version: int) -> None:
        generator, learner = self.components.generator, self.components.learner
        update, waits, loaded = await learner.publish(version), False, False

        async def transmit() -> None:
            nonlocal waits
            try:
                await learner.transmit(update)
            except asyncio.CancelledError:
                waits = True
                raise

        try:
            await together(transmit(), generator.load(update))
            loaded = True
        finally:
            if not waits:  # for an engine that does not receive: such a learner would not answer
                await learner.retire(update, loaded=loaded)

    async def check_parity(self, sample: Trajectory, learners: Sequence[float] | None = None) -> float:
        """Largest difference of engine and learner log-probs on a prompt and its response, nats: the worst engine's.
        ``learners``: the learner's, where they were computed before.
        """
        token_ids, generator = self._of(sample), self.components.generator
        if learners is None:
            engines, learners = await together(
                generator.logprobs(token_ids), self.components.learner.logprobs(token_ids)
            )
        else:
            engines = await generator.logprobs(token_ids)
        exact, bound = self.cfg.dtype == "float32", self.cfg.parity_bound
        checked = partial(
            check_parity, learner=learners, bound=bound, version=self.version, exact=exact,
            options=self.cfg.rollout.engine_options,
        )  # fmt: skip
        return max(map(checked, engine_by_engine(engines, len(learners))))

    def _of(self, sample: Trajectory) -> tuple[int, ...]:
        """The tokens of a probe."""
        return (*sample.prompt_ids, *sample.token_ids)[: self.cfg.context_tokens]

    def _refuse_more_empty_steps(self, groups: tuple[Group, ...]) -> None:
        bound = self.cfg.data.drop_solved
        self._empty += [g for g in groups if not (bound and solves(g, bound))]  # solved prompts are on their way out
        if len(self._empty) >= MAX_EMPTY_STEPS * self.cfg.rollout.groups_per_step:
            raise empty_batches(self._empty)


def probe(batch: Batch) -> Trajectory:
    """The response that engine and learner are compared on: the first one that has tokens."""
    return next((s.trajectory for s in batch.samples if s.trajectory.token_ids), batch.samples[0].trajectory)
