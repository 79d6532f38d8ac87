"""Whatever comes in whatever order: no sample is lost or counted twice, and no token is older than promised."""

from __future__ import annotations

import asyncio
import random

import pytest
from fake_loops import components, config, run_loop
from fake_parts import FakeGenerator, FakeLearner, FakeVerifier, fake_prompts
from group_of import scored
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from overlap.config.fields import Config
from overlap.core import Request, Scored, Trajectory
from overlap.core.errors import EmptyBatchesError
from overlap.pipeline.flow import Pending
from overlap.pipeline.learning import Components, StepResult
from overlap.pipeline.loop import overlapped
from overlap.pipeline.prompts import PromptStream
from overlap.pipeline.tracker import GroupTracker

HANG = 10_000.0


class Faulty(FakeGenerator):
    """Some samples hang, once or for ever; the fate of each follows from its name."""

    def __init__(self, seed: int, hangs: float, **kinds: object) -> None:
        super().__init__(seed=seed, **kinds)  # type: ignore[arg-type]
        self._hangs, self.asked = hangs, dict[str, int]()

    async def generate(self, request: Request) -> Trajectory:
        self.asked[request.id] = self.asked.get(request.id, 0) + 1
        draw = random.Random(f"{self._seed} {request.id}").random()
        if request.group >= 0 and draw < self._hangs and (self.asked[request.id] == 1 or draw < self._hangs / 3):
            await asyncio.sleep(HANG)
        return await super().generate(request)


@st.composite
def runs(draw: st.DrawFn) -> tuple[Config, Components]:
    cfg = config(
        rollout__groups_per_step=draw(st.integers(1, 4)),
        rollout__samples_per_group=draw(st.integers(2, 3)),
        rollout__max_staleness=draw(st.integers(0, 4)),
        rollout__refill_groups=draw(st.integers(0, 5)),
        rollout__max_sequences=draw(st.integers(1, 12)),
        run__steps=draw(st.integers(1, 12)),
        run__stall_s=100,
    )
    seed, scale = draw(st.integers(0, 2**16)), draw(st.sampled_from([0.0, 1.0, 30.0]))
    slots = draw(st.integers(1, 12))
    generator = Faulty(seed, draw(st.sampled_from([0.0, 0.0, 0.1])), seconds=lambda r: r.expovariate(1), slots=slots)
    verifier = FakeVerifier(
        seed=seed,
        seconds=lambda rng: scale * rng.random(),
        workers=draw(st.integers(1, 4)),
        solved=draw(st.floats(0.3, 0.7)),
        failed=draw(st.sampled_from([0.0, 0.2])),
    )
    learning, shares = draw(st.sampled_from([(0.0, False), (0.5, False), (20.0, False), (0.5, True), (250.0, True)]))
    return cfg, Components(generator, verifier, FakeLearner(seconds=lambda _: learning, shares=shares))


def check(cfg: Config, made: Components, results: list[StepResult], position: int) -> None:
    k, groups_per_step = cfg.rollout.max_staleness, cfg.rollout.groups_per_step
    seen = [g for r in results for g in sorted((*r.batch.groups, *r.batch.dropped), key=lambda g: g.id)]
    assert [g.id for g in seen] == list(range(len(seen))), "every group once, in order of admission"
    assert all(len(g.samples) == cfg.rollout.samples_per_group for g in seen)
    assert all(0 <= age <= k for r in results for age in r.batch.staleness)
    versions = [r.batch.version for r in results]
    assert versions == sorted(versions)
    for r in results:
        dropped = min(cfg.rollout.refill_groups, len(r.batch.dropped))
        assert len(r.batch.groups) + len(r.batch.dropped) == groups_per_step + dropped
    assert position == len(seen), "no prompt was let in that no step took"
    assert made.generator.running == 0  # type: ignore[attr-defined]


@pytest.mark.promise("counted-once", "staleness")
@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(runs())
def test_every_sample_has_one_result_and_no_token_is_too_old(made: tuple[Config, Components]) -> None:
    cfg, parts = made
    stalls, prompts = list[Pending](), PromptStream(fake_prompts(5), 0)

    def on_stall(pending: list[Pending], given_up: bool) -> None:
        stalls.extend(pending if given_up else [])

    try:
        results = run_loop(overlapped, cfg, parts, prompts, on_stall=on_stall)
    except EmptyBatchesError:
        return  # nothing to learn from, three times in a row: told, and the end
    assert len(results) == cfg.run.steps
    assert all(result.loop is not None and result.loop.leases_out <= cfg.leases for result in results)
    check(cfg, parts, results, prompts.position)
    lost = {s.id: s.failure for r in results for s in r.batch.all_samples}
    assert {p.id for p in stalls} == {name for name, failure in lost.items() if failure.startswith("no end of")}


@pytest.mark.promise("counted-once")
def test_what_hangs_is_begun_again_once_and_then_fails_by_name() -> None:
    class Hanging(FakeVerifier):
        tries = 0

        async def score(self, trajectory: Trajectory) -> Scored:
            if trajectory.id == "g1s1":
                self.tries += 1
                await asyncio.sleep(HANG)
            if trajectory.id == "g0s0" and not self.tries:
                self.tries += 1
                await asyncio.sleep(HANG)
            return await super().score(trajectory)

    told = list[tuple[list[str], bool]]()
    results = run_loop(
        overlapped,
        config(rollout__groups_per_step=2, run__steps=1, run__stall_s=9),
        components(verifier=Hanging(seed=1, seconds=lambda rng: rng.random())),
        on_stall=lambda pending, given_up: told.append((sorted(p.id for p in pending), given_up)),
    )
    samples = {s.id: s for s in results[0].batch.all_samples}
    assert told == [(["g0s0", "g1s1"], False), (["g1s1"], True)]
    assert samples["g0s0"].reward is not None
    assert samples["g1s1"].reward is None
    assert samples["g1s1"].failure == "no end of verify within 9 s, 2 times"


@pytest.mark.virtual
async def test_results_that_no_step_has_taken_are_told_wherever_they_wait() -> None:
    """In a group that is not complete, in a complete step that waits for the learner, or carried and not admitted."""
    cfg = config(rollout__groups_per_step=1, rollout__samples_per_group=2, rollout__max_staleness=1)

    stream = PromptStream(fake_prompts(5), 0)

    def result(group: int, sample: int) -> Scored:
        return scored(Request(group, sample, stream.at(group)), float(sample))

    tracker = GroupTracker(cfg, stream, 4, 0, (result(3, 0), result(1, 1)))
    sent: list[Request] = []
    admitting = asyncio.create_task(tracker.admit(sent.append))
    await asyncio.sleep(0)
    assert [request.id for request in sent] == ["g0s0", "g0s1", "g1s0"]
    for request in sent[:2]:
        tracker.add(result(request.group, request.sample))
    assert len(tracker.steps.waiting) == 1
    admitting.cancel()
    assert [each.id for each in tracker.finished] == ["g0s0", "g0s1", "g1s1", "g3s0"]
