"""Equal programs share one judgement of the sandbox, and nobody's cancellation or failure becomes somebody else's."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from verifying import Judged, config, says, trajectory

from overlap.verify.verifier import SandboxVerifier
from sandbox.core.nouns import Judgement, Verdict
from sandbox.errors import WorkerDied
from sandbox.pool.pool import Pool


class Counting(Pool):
    """The sandbox's pool without its processes: judges when ``go`` is set; ``asked`` are the sources it got."""

    def __init__(self, *outcomes: Verdict | Exception, judge_once: bool = True) -> None:
        super().__init__(1, judge_once=judge_once)
        self.asked: list[str] = []
        self.go, self.begun = asyncio.Event(), asyncio.Event()
        self._says = says(*outcomes)

    async def __aenter__(self) -> Counting:
        return self

    async def _judge(self, job: Any) -> Judgement:
        self.asked.append(job.program.source)
        self.begun.set()
        await self.go.wait()
        return await self._says(job.program)


def verifier_on(pool: Counting) -> SandboxVerifier:
    return SandboxVerifier(config(), Judged(), pool=lambda: pool)


@pytest.mark.parametrize(("once", "times"), [(True, 1), (False, 8)])
def test_equal_programs_are_judged_once_unless_switched_off(
    once: bool, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pools: list[Counting] = []

    def make(*, judge_once: bool, **options: object) -> Counting:
        pools.append(Counting(Verdict.AC, judge_once=judge_once))
        pools[-1].go.set()
        return pools[-1]

    async def run() -> None:
        verifier = SandboxVerifier(config(), Judged(), judge_once=once)
        together = await asyncio.gather(*(verifier.score(trajectory("x", k)) for k in range(4)))
        later = [await verifier.score(trajectory("x", k)) for k in range(4, 8)]
        assert [s.reward for s in (*together, *later)] == [1.0] * 8
        assert all(s.queued_s <= s.started_s <= s.finished_s for s in (*together, *later))
        await verifier.close()

    monkeypatch.setattr("sandbox.pool.pool.Pool", make)
    asyncio.run(run())
    assert [(pool.asked, pool.stats().cache_hits) for pool in pools] == [(["x"] * times, 8 - times)]


@pytest.mark.parametrize(("cancelled", "asked"), [(0, ["x", "x"]), (1, ["x"])])
async def test_a_sample_that_is_cancelled_takes_nobody_along(cancelled: int, asked: list[str]) -> None:
    """Another one judges where it was the first, which judged for all."""

    pool = Counting(Verdict.AC)
    verifier = verifier_on(pool)
    samples = [asyncio.create_task(verifier.score(trajectory("x", k))) for k in range(3)]
    await asyncio.wait_for(pool.begun.wait(), 10)
    lost = samples.pop(cancelled)
    lost.cancel()
    with pytest.raises(asyncio.CancelledError):
        await lost
    pool.go.set()
    assert [(await asyncio.wait_for(sample, 10)).reward for sample in samples] == [1.0, 1.0]
    assert pool.asked == asked
    await verifier.close()


async def test_different_programs_are_judged_apart_and_our_failure_is_not_kept() -> None:
    pool = Counting(*[WorkerDied("gone")] * 2, Verdict.AC, Verdict.WA)
    pool.go.set()
    verifier = verifier_on(pool)
    rewards = [(await verifier.score(trajectory(text))).reward for text in ("x", "x", "y", "x", "y")]
    assert rewards == [None, 1.0, 0.0, 1.0, 0.0]
    await verifier.close()
