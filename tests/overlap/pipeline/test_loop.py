"""The two loops, on seeded fakes."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from fake_loops import LOOPS, components, config, jitter, run_loop
from fake_parts import FakeGenerator, FakeLearner, FakeVerifier, fake_prompts
from journal import essence

from overlap.core import Batch, Request, Scored, StepReport, Trajectory, WeightUpdate
from overlap.core.errors import EmptyBatchesError, EngineError, LearnerError, ParityError, StageError, StaleBatchError
from overlap.pipeline.learning import StepResult
from overlap.pipeline.loop import overlapped, serial
from overlap.pipeline.prompts import PromptStream

both_loops = pytest.mark.parametrize("loop", LOOPS)


@pytest.mark.promise("same-batches")
@pytest.mark.parametrize(
    ("advantage", "refill", "samples", "failed"),
    [
        *(("group", refill, 4, 0.05) for refill in (0, 2, 8)),
        *(
            (advantage, refill, samples, 0.3)
            for advantage in ("leave_one_out", "global", "gae")
            for refill, samples in ((0, 4), (2, 4), (8, 2 if advantage == "leave_one_out" else 1))
        ),
    ],
)
def test_loops_give_identical_batches_whatever_a_reward_is_compared_with(
    advantage: str, refill: int, samples: int, failed: float
) -> None:
    """Where ``failed`` is 0.3 few samples are judged: groups are dropped, and most rewards of a group are equal."""
    cfg = config(rollout__refill_groups=refill, rollout__samples_per_group=samples, learn__advantage=advantage)
    found = []
    for loop in LOOPS:
        verifier = FakeVerifier(seed=3, seconds=jitter, solved=0.3, failed=failed)
        made = components(generator=FakeGenerator(seed=3, seconds=jitter), verifier=verifier)
        found.append([r.batch for r in run_loop(loop, cfg, made)])
    assert [essence(batch) for batch in found[0]] == [essence(batch) for batch in found[1]]
    assert len(found[0]) == 5
    reasons = {g.dropped for b in found[1] for g in b.dropped}
    if advantage in ("global", "gae"):
        assert reasons <= {"too_few_scored"} | ({"equal_rewards"} if advantage == "global" else set())
        assert all(g.rewards for b in found[1] for g in b.groups)


@pytest.mark.promise("staleness")
@pytest.mark.parametrize("staleness", [1, 2])
def test_stale_batches_stay_within_the_bound_and_reach_it(staleness: int) -> None:
    cfg = config(rollout__max_staleness=staleness, run__steps=8)
    made = components(generator=FakeGenerator(seconds=jitter), learner=FakeLearner(seconds=lambda _: 0.001))
    assert max(age for r in run_loop(overlapped, cfg, made) for age in r.batch.staleness) == staleness


@pytest.mark.promise("same-batches")
def test_stale_runs_give_the_same_samples_as_the_serial_loop() -> None:
    found = []
    for loop, staleness, shares in [(serial, 0, False), (overlapped, 2, False), (overlapped, 2, True)]:
        kinds = {"generator": FakeGenerator(seed=1, seconds=jitter), "verifier": FakeVerifier(seed=1, seconds=jitter)}
        kinds["learner"] = FakeLearner(shares=shares)
        results = run_loop(loop, config(rollout__max_staleness=staleness), components(**kinds))
        found.append([essence(r.batch) for r in results])
    assert found[0] == found[1] == found[2]


@pytest.mark.promise("counted-once")
@both_loops
def test_every_version_is_published_loaded_and_retired_once(loop) -> None:
    made = components()
    run_loop(loop, config(), made)
    assert made.generator.loads == made.learner.published == made.learner.retired == [0, 1, 2, 3, 4, 5]


@both_loops
@pytest.mark.parametrize(
    ("advantage", "refill", "solved", "hint"),
    [
        *(("group", refill, *end) for refill in (0, 2, 8) for end in ((0.0, "too hard"), (1.0, "too easy"))),
        ("global", 0, 0.0, "too hard"),
    ],
)
def test_steps_without_anything_to_learn_stop_the_run_and_say_why(
    loop, advantage: str, refill: int, solved: float, hint: str
) -> None:
    cfg = config(learn__advantage=advantage, rollout__refill_groups=refill, run__steps=10)
    with pytest.raises(EmptyBatchesError, match=hint):
        run_loop(loop, cfg, components(verifier=FakeVerifier(solved=solved)))


@pytest.mark.promise("our-faults")
@both_loops
def test_samples_that_cannot_be_scored_are_masked_and_never_score_zero(loop) -> None:
    results = run_loop(loop, config(), components(verifier=FakeVerifier(failed=0.3)))
    groups = [g for r in results for g in r.batch.groups]
    masked = [a for g in groups for s, a in zip(g.samples, g.advantages, strict=True) if s.reward is None]
    assert masked
    assert set(masked) == {0.0}


class DyingGenerator(FakeGenerator):
    async def _sample(self, request: Request) -> Trajectory:
        if request.group == 5:
            raise EngineError("the engine process was killed")
        return await super()._sample(request)


class DyingVerifier(FakeVerifier):
    async def score(self, trajectory: Trajectory) -> Scored:
        if trajectory.request.group == 5:
            raise ValueError("boom")
        return await super().score(trajectory)


class DyingLearner(FakeLearner):
    async def step(self, batch: Batch) -> StepReport:
        if batch.step == 2:
            raise LearnerError("rank 0 died")
        return await super().step(batch)


class ForgetfulGenerator(FakeGenerator):
    """Says that it loaded, and keeps the old weights."""

    async def load(self, update: WeightUpdate) -> None:
        await super().load(update)
        self.version = 0


class NoTransmit(FakeLearner):
    async def transmit(self, update: WeightUpdate) -> None:
        raise LearnerError("link down")


@pytest.mark.promise("stage-faults")
@both_loops
@pytest.mark.parametrize(
    ("part", "kind", "cause", "where"),
    [
        ("generator", DyingGenerator, EngineError, "generation failed for sample g5s"),
        ("verifier", DyingVerifier, ValueError, "verification failed for sample g5s"),
        ("learner", DyingLearner, LearnerError, "learning failed at step 2"),
        ("generator", ForgetfulGenerator, ParityError, "load.* version 1"),
        ("learner", NoTransmit, LearnerError, "load.* version 0.*link down"),
    ],
)
def test_a_stage_that_fails_names_itself_and_where_it_stood(loop, part: str, kind, cause: type, where: str) -> None:
    made = components(**{part: kind()})
    with pytest.raises(StageError, match=where) as caught:
        run_loop(loop, config(), made)
    assert isinstance(caught.value.__cause__, cause)
    assert made.learner.retired == made.learner.published, "also what could not be sent"


@both_loops
def test_an_engine_that_refuses_weights_is_told_of_at_once_though_the_learner_waits_for_it_to_receive(loop) -> None:
    """Over nccl: a broadcast ends when all have received, and a learner in it answers nobody."""

    class Refuses(FakeGenerator):
        async def load(self, update: WeightUpdate) -> None:
            if update.version == 1:
                raise EngineError("CUDA out of memory")
            await super().load(update)

    class Broadcasts(FakeLearner):
        async def transmit(self, update: WeightUpdate) -> None:
            if update.version == 1:
                await asyncio.Event().wait()

        async def retire(self, update: WeightUpdate, *, loaded: bool = True) -> None:
            if update.version == 1:
                await asyncio.Event().wait()
            await super().retire(update)

    made = components(generator=Refuses(), learner=Broadcasts())
    with pytest.raises(StageError, match=r"load.* version 1.*CUDA out of memory"):
        run_loop(loop, config(), made)
    assert made.learner.retired == [0]


@pytest.mark.promise("figures")
def test_verification_starts_while_other_samples_still_generate() -> None:
    generator = FakeGenerator(seconds=lambda rng: 0.002 + 0.05 * rng.random())
    made = components(generator=generator, verifier=FakeVerifier(seconds=lambda _: 0.001))
    first = run_loop(overlapped, config(), made)[0].batch.all_samples
    last_token = max(s.trajectory.finished_s for s in first)
    assert any(s.finished_s < last_token for s in first)


@pytest.mark.promise("stage-faults")
async def test_cancelling_the_run_cancels_every_request() -> None:
    class Announcing(FakeGenerator):
        async def _sample(self, request: Request) -> Trajectory:
            self._seconds = lambda _: 60.0 if request.group >= 0 else 0.0
            if self.running == 16:
                self.full.set()
            return await super()._sample(request)

    async def on_step(_: StepResult) -> None:
        return None

    generator = Announcing()
    generator.full = asyncio.Event()
    prompts = PromptStream(fake_prompts(7), 0)
    task = asyncio.create_task(overlapped(components(generator=generator), config(), prompts, on_step))
    await asyncio.wait_for(generator.full.wait(), 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert generator.running == 0
    assert asyncio.all_tasks() == {asyncio.current_task()}


class LateGenerator(FakeGenerator):
    """Samples with the version before the one that it should serve."""

    async def _sample(self, request: Request) -> Trajectory:
        trajectory = await super()._sample(request)
        return replace(trajectory, spans=tuple(replace(span, version=span.version - 1) for span in trajectory.spans))


@pytest.mark.promise("staleness")
@both_loops
def test_a_batch_older_than_promised_is_refused(loop) -> None:
    with pytest.raises(StaleBatchError, match=r"is 1 versions old at step 1, rollout\.max_staleness=0"):
        run_loop(loop, config(), components(generator=LateGenerator()))


def test_the_learner_never_receives_an_empty_batch() -> None:
    made = components(verifier=FakeVerifier(solved=0.6))
    results = run_loop(overlapped, config(rollout__groups_per_step=1, run__steps=12), made)
    assert len(results) == 12
    assert any(r.report is None for r in results)
    assert all(b.groups for b in made.learner.batches)


@both_loops
def test_the_first_version_is_checked_on_the_beginning_of_a_response(loop) -> None:
    """A whole one may take minutes in which nothing else is done."""

    class Asked(FakeGenerator):
        async def generate(self, request: Request) -> Trajectory:
            limits.setdefault(request.group < 0, set()).add(request.max_tokens)
            return await super().generate(request)

    limits = dict[bool, set[int | None]]()
    run_loop(loop, config(), components(generator=Asked()))
    assert limits == {True: {256}, False: {None}}
