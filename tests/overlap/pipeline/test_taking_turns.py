"""Engine and learner share a device, and later steps wait in the engine while it sleeps: fakes on a virtual clock."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from fake_loops import components, config, run_loop
from fake_parts import FakeGenerator, FakeLearner, _rng, fake_prompts
from virtual_clock import run_virtual

from overlap.core import Batch, Request, StepReport
from overlap.core.clock import now
from overlap.pipeline.control import Control
from overlap.pipeline.flow import Pending
from overlap.pipeline.learning import StepResult
from overlap.pipeline.loop import overlapped
from overlap.pipeline.prompts import PromptStream

SHORT_S, LONG_S, LEARN_S, STALL_S = 1.0, 15.0, 50.0, 20.0


def lengths(rng: random.Random) -> float:
    """A few are much longer than the others."""
    return min(LONG_S, SHORT_S + rng.expovariate(0.3))


class Sleeper(FakeGenerator):
    """Tells when it was asleep."""

    def __init__(self) -> None:
        super().__init__(seconds=lengths)
        self.slept, self._since_s = list[tuple[float, float]](), 0.0

    async def sleep(self) -> None:
        if not self._asleep:
            self._since_s = now()
        await super().sleep()

    async def wake(self, part: str) -> None:
        await super().wake(part)
        if part == "cache":
            self.slept.append((self._since_s, now()))


class Learner(FakeLearner):
    """Looks at the engine while it learns, and does ``meanwhile`` in the second step."""

    def __init__(self, engine: FakeGenerator, meanwhile: Callable[[], Awaitable[None]] | None = None) -> None:
        super().__init__(seconds=lambda _: LEARN_S, shares=True)
        self._engine, self._meanwhile, self.kept = engine, meanwhile, list[int]()

    async def step(self, batch: Batch) -> StepReport:
        assert self._engine._decoded.paused
        self.kept.append(self._engine.running)
        if self._meanwhile is not None and len(self.batches) == 1:
            await self._meanwhile()
        return await super().step(batch)


def asked(**more: object) -> Any:
    return config(**({"rollout__max_staleness": 1, "run__steps": 6, "run__stall_s": STALL_S} | more))


def slept_s(engine: Sleeper, start: float, end: float) -> float:
    return sum(max(0.0, min(end, until) - max(start, since)) for since, until in engine.slept)


@pytest.mark.promise("sleeping")
@pytest.mark.parametrize("staleness", [1, 2])
def test_what_is_not_at_its_end_is_kept_and_takes_no_longer_than_it_would_have(staleness: int) -> None:
    engine, told = Sleeper(), list[Pending]()
    learner = Learner(engine)
    results = run_loop(
        overlapped,
        asked(rollout__max_staleness=staleness),
        components(generator=engine, learner=learner),
        on_stall=lambda pending, _: told.extend(pending),
    )
    samples = [s.trajectory for r in results for s in r.batch.all_samples]
    assert sorted(t.request.place for t in samples) == [(g, s) for g in range(24) for s in range(4)]
    assert max(learner.kept) > 0
    crossed = 0
    for t in samples:
        asleep = slept_s(engine, t.started_s, t.finished_s)
        crossed += asleep > 0
        assert t.finished_s - t.started_s - asleep == pytest.approx(
            lengths(_rng(0, t.request.group, t.request.prompt.id, t.request.sample)), abs=1e-6
        ), "it was begun anew"
        assert len(t.spans) >= 1
        assert [s.start for s in t.spans] == [0, *(s.end for s in t.spans[:-1])]
    assert crossed > 0
    assert max(age for r in results for age in r.batch.staleness) <= staleness
    assert told == [], "the time in which the engine sleeps is no stall"


@pytest.mark.promise("sleeping")
@pytest.mark.parametrize("act", ["pause", "drain", "cancel"])
def test_a_run_is_paused_drained_or_cancelled_while_the_engine_sleeps(act: str) -> None:
    async def main() -> None:
        control, results = Control(), list[StepResult]()
        engine, prompts = Sleeper(), PromptStream(fake_prompts(7), 0)

        async def meanwhile() -> None:
            assert engine.running > 0
            task.cancel() if act == "cancel" else getattr(control, act)()

        async def on_step(result: StepResult) -> None:
            results.append(result)

        made = components(generator=engine, learner=Learner(engine, meanwhile))
        task = asyncio.create_task(overlapped(made, asked(), prompts, on_step, control=control))
        if act == "pause":
            await asyncio.sleep(1000)
            assert (control.doing, len(results), engine.running) == ("paused", 2, 0)
            control.resume()
        await asyncio.gather(task, return_exceptions=act == "cancel")
        assert engine.running == 0
        assert asyncio.all_tasks() == {asyncio.current_task()}
        groups = sorted(g.id for r in results for g in (*r.batch.groups, *r.batch.dropped))
        assert groups == list(range(len(groups)))
        assert len(results) == {"pause": 6, "drain": 3, "cancel": 1}[act]

    run_virtual(main())


def test_an_evaluation_after_a_step_is_of_its_version_whatever_the_engine_has_kept() -> None:
    engine, seen = Sleeper(), list[tuple[int, set[int]]]()

    async def on_weights(result: StepResult) -> None:
        asks = [Request(-1, k, fake_prompts(1)[0]) for k in range(8)]
        found = await asyncio.gather(*map(engine.generate, asks))
        assert result.report is not None
        seen.append((result.report.version, {s.version for t in found for s in t.spans}))

    learner = Learner(engine)
    results = run_loop(overlapped, asked(), components(generator=engine, learner=learner), on_weights=on_weights)
    assert [versions for version, versions in seen] == [{version} for version, _ in seen]
    assert min(s.trajectory.request.group for r in results for s in r.batch.all_samples) == 0
