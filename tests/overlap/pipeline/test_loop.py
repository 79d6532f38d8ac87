"""The two loops, on seeded fakes."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from overlap.clock import run_virtual
from overlap.config import Config, load_config
from overlap.core import Batch, Request, Scored, StepReport, Trajectory, WeightUpdate
from overlap.errors import EmptyBatchesError, EngineError, LearnerError, ParityError, StageError, StaleBatchError
from overlap.fakes import FakeGenerator, FakeLearner, FakeVerifier, fake_prompts
from overlap.pipeline.learning import Components, StepResult, check_age
from overlap.pipeline.loop import Position, overlapped, serial
from overlap.pipeline.prompts import PromptStream

LOOPS = [serial, overlapped]


def config(**overrides: object) -> Config:
    base = {"rollout.groups_per_step": 4, "rollout.samples_per_group": 4, "run.steps": 5} | overrides
    return load_config(None, [f"{k}={v}" for k, v in base.items()])


def jitter(rng: random.Random) -> float:
    return rng.random() * 0.004


def components(**kinds: object) -> Components:
    made = {"generator": FakeGenerator(), "verifier": FakeVerifier(), "learner": FakeLearner()} | kinds
    return Components(**made)  # type: ignore[arg-type]


async def run(loop, cfg: Config, d: Components, prompts: int = 7) -> list[StepResult]:
    results: list[StepResult] = []

    async def on_step(result: StepResult) -> None:
        results.append(result)

    async with asyncio.timeout(100_000):
        await loop(d, cfg, PromptStream(fake_prompts(prompts), cfg.run.seed), on_step)
    return results


def essence(batch: Batch) -> tuple:
    """A batch without the times at which things happened."""
    strip = [
        (
            g.id,
            g.prompt.id,
            g.advantages,
            [(s.id, s.reward, s.trajectory.token_ids, s.trajectory.logprobs) for s in g.samples],
        )
        for g in batch.groups
    ]
    return batch.step, batch.version, strip, [(g.id, g.dropped) for g in batch.dropped]


@pytest.mark.parametrize("refill", [0, 2, 8])
def test_serial_and_overlapped_give_identical_batches(refill: int) -> None:
    cfg = config(**{"rollout.refill_groups": refill})
    found = []
    for loop in LOOPS:
        kinds = {
            "generator": FakeGenerator(seed=3, seconds=jitter),
            "verifier": FakeVerifier(seed=3, seconds=jitter, solved=0.3, failed=0.05),
        }
        found.append([essence(r.batch) for r in run_virtual(run(loop, cfg, components(**kinds)))])
    assert found[0] == found[1]
    assert len(found[0]) == 5


@pytest.mark.parametrize("advantage", ["leave_one_out", "global", "gae"])
@pytest.mark.parametrize(("refill", "samples"), [(0, 4), (2, 4), (8, 1)])
def test_loops_give_identical_batches_whatever_a_reward_is_held_against(advantage, refill: int, samples: int) -> None:
    """Few samples are judged, so that groups are dropped, and most rewards of a group are equal."""
    sizes = {"rollout.refill_groups": refill, "rollout.samples_per_group": max(samples, 2)}
    if advantage != "leave_one_out":
        sizes["rollout.samples_per_group"] = samples
    cfg = config(**sizes, **{"learn.advantage": advantage})
    found, steps = [], []
    for loop in LOOPS:
        kinds = {
            "generator": FakeGenerator(seed=3, seconds=jitter),
            "verifier": FakeVerifier(seed=3, seconds=jitter, solved=0.3, failed=0.3),
        }
        results = run_virtual(run(loop, cfg, components(**kinds)))
        found.append([essence(r.batch) for r in results])
        steps = [r.batch for r in results]
    assert found[0] == found[1]
    reasons = {g.dropped for b in steps for g in b.dropped}
    if advantage != "leave_one_out":
        assert reasons <= {"too_few_scored"} | ({"equal_rewards"} if advantage == "global" else set())
        assert all(g.rewards for b in steps for g in b.groups)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_critic_learns_from_steps_whose_rewards_are_all_equal(loop) -> None:
    cfg = config(**{"learn.advantage": "gae", "rollout.refill_groups": 4})
    results = run_virtual(run(loop, cfg, components(verifier=FakeVerifier(solved=0.0))))
    assert [len(r.batch.groups) for r in results] == [4] * 5
    assert not any(r.batch.dropped for r in results)


@pytest.mark.parametrize("loop", LOOPS)
def test_steps_of_equal_rewards_have_no_global_advantage_and_stop_the_run(loop) -> None:
    cfg = config(**{"learn.advantage": "global"})
    with pytest.raises(EmptyBatchesError, match="too hard"):
        run_virtual(run(loop, cfg, components(verifier=FakeVerifier(solved=0.0))))


@pytest.mark.parametrize("loop", LOOPS)
def test_on_policy_batches_hold_only_the_newest_version(loop) -> None:
    results = run_virtual(run(loop, config(), components(generator=FakeGenerator(seconds=jitter))))
    assert [r.batch.version for r in results] == [0, 1, 2, 3, 4]
    assert all(set(r.batch.staleness) == {0} for r in results)


@pytest.mark.parametrize("staleness", [1, 2])
def test_stale_batches_stay_within_the_bound_and_reach_it(staleness: int) -> None:
    cfg = config(**{"rollout.max_staleness": staleness, "run.steps": 8})
    kinds = {"generator": FakeGenerator(seconds=jitter), "learner": FakeLearner(seconds=lambda _: 0.001)}
    results = run_virtual(run(overlapped, cfg, components(**kinds)))
    assert max(age for r in results for age in r.batch.staleness) == staleness


def test_stale_runs_give_the_same_samples_as_the_serial_loop() -> None:
    found = []
    for loop, staleness in [(serial, 0), (overlapped, 2)]:
        cfg = config(**{"rollout.max_staleness": staleness})
        kinds = {"generator": FakeGenerator(seed=1, seconds=jitter), "verifier": FakeVerifier(seed=1, seconds=jitter)}
        found.append([essence(r.batch) for r in run_virtual(run(loop, cfg, components(**kinds)))])
    assert found[0] == found[1]


@pytest.mark.parametrize("loop", LOOPS)
def test_every_version_is_published_loaded_and_retired_once(loop) -> None:
    d = components()
    run_virtual(run(loop, config(), d))
    assert d.generator.loads == d.learner.published == d.learner.retired == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("loop", LOOPS)
def test_refill_replaces_dropped_groups_until_the_step_is_full(loop) -> None:
    cfg = config(**{"rollout.refill_groups": 40})
    results = run_virtual(run(loop, cfg, components(verifier=FakeVerifier(solved=0.15))))
    assert all(len(r.batch.groups) == 4 for r in results)
    assert sum(len(r.batch.dropped) for r in results) > 0


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("refill", [0, 2, 8])
@pytest.mark.parametrize(("solved", "hint"), [(0.0, "too hard"), (1.0, "too easy")])
def test_steps_without_anything_to_learn_stop_the_run_and_say_why(loop, refill: int, solved: float, hint: str) -> None:
    cfg = config(**{"rollout.refill_groups": refill, "run.steps": 10})
    with pytest.raises(EmptyBatchesError, match=hint):
        run_virtual(run(loop, cfg, components(verifier=FakeVerifier(solved=solved))))


@pytest.mark.parametrize("loop", LOOPS)
def test_samples_that_cannot_be_scored_are_masked_and_never_score_zero(loop) -> None:
    results = run_virtual(run(loop, config(), components(verifier=FakeVerifier(failed=0.3))))
    masked = [
        (s.reward, a) for r in results for g in r.batch.groups for s, a in zip(g.samples, g.advantages, strict=True)
    ]
    assert any(reward is None for reward, _ in masked)
    assert all(a == 0.0 for reward, a in masked if reward is None)


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


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(
    ("kind", "cause", "where"),
    [
        ({"generator": DyingGenerator}, EngineError, "generation failed for sample g5s"),
        ({"verifier": DyingVerifier}, ValueError, "verification failed for sample g5s"),
        ({"learner": DyingLearner}, LearnerError, "learning failed at step 2"),
    ],
)
def test_a_stage_that_dies_names_itself_and_the_sample(loop, kind: dict, cause: type, where: str) -> None:
    with pytest.raises(StageError, match=where) as caught:
        run_virtual(run(loop, config(), components(**{name: make() for name, make in kind.items()})))
    assert isinstance(caught.value.__cause__, cause)


class ForgetfulGenerator(FakeGenerator):
    """Says that it loaded, and keeps the old weights."""

    async def load(self, update: WeightUpdate) -> None:
        await super().load(update)
        self.version = 0


@pytest.mark.parametrize("loop", LOOPS)
def test_an_engine_that_did_not_take_the_weights_stops_the_run(loop) -> None:
    with pytest.raises(StageError) as caught:
        run_virtual(run(loop, config(), components(generator=ForgetfulGenerator())))
    assert isinstance(caught.value.__cause__, ParityError)


class NoTransmit(FakeLearner):
    async def transmit(self, update: WeightUpdate) -> None:
        raise LearnerError("link down")


@pytest.mark.parametrize("loop", LOOPS)
def test_a_failed_transfer_is_retired_all_the_same(loop) -> None:
    learner = NoTransmit()
    with pytest.raises(StageError, match="link down"):
        run_virtual(run(loop, config(), components(learner=learner)))
    assert learner.retired == learner.published


def test_verification_starts_while_other_samples_still_generate() -> None:
    spans: list[Scored] = []
    kinds = {
        "generator": FakeGenerator(seconds=lambda rng: 0.002 + 0.05 * rng.random()),
        "verifier": FakeVerifier(seconds=lambda _: 0.001),
    }
    for result in run_virtual(run(overlapped, config(), components(**kinds))):
        spans.extend(result.batch.samples)
        spans.extend(s for g in result.batch.dropped for s in g.samples)
    last_token = max(s.trajectory.finished_s for s in spans if s.trajectory.request.group < 4)
    assert any(s.finished_s < last_token for s in spans if s.trajectory.request.group < 4)


def test_cancelling_the_run_cancels_every_request() -> None:
    class Announcing(FakeGenerator):
        async def _sample(self, request: Request) -> Trajectory:
            self._seconds = lambda _: 60.0 if request.group >= 0 else 0.0
            if self.running == 16:
                self.full.set()
            return await super()._sample(request)

    generator = Announcing()

    async def start_and_cancel() -> None:
        generator.full = asyncio.Event()
        task = asyncio.create_task(run(overlapped, config(), components(generator=generator)))
        await asyncio.wait_for(generator.full.wait(), 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert generator.running == 0
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(start_and_cancel())


def test_nothing_is_admitted_beyond_the_last_step() -> None:
    generator = FakeGenerator()
    cfg = config(**{"rollout.max_staleness": 3, "run.steps": 3})
    run_virtual(run(overlapped, cfg, components(generator=generator)))
    assert generator.running == 0
    prompts = PromptStream(fake_prompts(7), 0)

    async def on_step(_: StepResult) -> None:
        return None

    asyncio.run(overlapped(components(), cfg, prompts, on_step))
    assert prompts.position == 3 * 4


def test_a_batch_older_than_promised_is_refused() -> None:
    results = run_virtual(run(serial, config(), components()))
    with pytest.raises(StaleBatchError, match="max_staleness=1"):
        check_age(replace(results[0].batch, version=2), max_staleness=1)


def test_the_learner_never_receives_an_empty_batch() -> None:
    learner = FakeLearner()
    cfg = config(**{"rollout.groups_per_step": 1, "run.steps": 12})
    results = run_virtual(run(overlapped, cfg, components(verifier=FakeVerifier(solved=0.6), learner=learner)))
    assert len(results) == 12
    assert any(r.report is None for r in results)
    assert all(b.groups for b in learner.batches)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("refill", [0, 2, 8])
def test_a_resumed_run_goes_on_with_the_batches_of_the_unbroken_one(loop, refill: int) -> None:
    def fresh() -> Components:
        return components(generator=FakeGenerator(seed=5), verifier=FakeVerifier(seed=5, solved=0.3))

    cfg = config(**{"rollout.refill_groups": refill})
    whole = [r.batch for r in run_virtual(run(loop, cfg, fresh()))]
    consumed = sum(len(b.groups) + len(b.dropped) for b in whole[:2])
    at = Position(step=2, version=whole[2].version, groups=consumed)
    rest: list[Batch] = []

    async def on_step(result: StepResult) -> None:
        rest.append(result.batch)

    resumed = fresh()
    resumed.learner.version = at.version
    asyncio.run(loop(resumed, cfg, PromptStream(fake_prompts(7), cfg.run.seed, consumed), on_step, at))
    assert [essence(b) for b in rest] == [essence(b) for b in whole[2:]]


def test_what_is_to_be_done_first_happens_before_anything_is_admitted() -> None:
    generator, seen = FakeGenerator(), []

    async def on_ready() -> None:
        seen.append((generator.version, prompts.position))

    async def on_step(_: StepResult) -> None:
        return None

    prompts = PromptStream(fake_prompts(3), 0)
    asyncio.run(overlapped(components(generator=generator), config(), prompts, on_step, on_ready=on_ready))
    assert seen == [(0, 0)]


def test_a_run_that_was_cut_in_the_middle_generates_only_what_it_lacks() -> None:
    """Results that no step had taken are carried over: with them the batches are those of the unbroken run."""
    cfg = config(**{"rollout.max_staleness": 2, "rollout.refill_groups": 1})

    def fresh(first: int = 0) -> Components:
        kinds = {
            "generator": FakeGenerator(seed=5, seconds=jitter),
            "verifier": FakeVerifier(seed=5, seconds=jitter, solved=0.3),
            "learner": FakeLearner(seconds=lambda _: 0.004, first_version=first),
        }
        return components(**kinds)

    whole = run_virtual(run(overlapped, cfg, fresh()))
    for cut in range(1, 5):
        before, taken = whole[cut - 1], sum(len(r.batch.groups) + len(r.batch.dropped) for r in whole[:cut])
        version = before.report.version if before.report else before.batch.version
        at = Position(cut, version, taken, before.carried)
        d, rest = fresh(version), []

        async def on_step(result: StepResult, rest: list = rest) -> None:
            rest.append(result.batch)

        run_virtual(overlapped(d, cfg, PromptStream(fake_prompts(7), cfg.run.seed, taken), on_step, at))
        assert [essence(b) for b in rest] == [essence(r.batch) for r in whole[cut:]]
        made = {s.id for b in rest for g in (*b.groups, *b.dropped) for s in g.samples}
        assert {s.id for s in before.carried} <= made
