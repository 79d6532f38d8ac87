"""A pool that stops answering is killed, and one of several nodes reports what these do."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest
from verifying import Judged, StandIn, config, hanging, judgement, says, trajectory

from overlap.verify.guarded_pool import ClusterFigures
from overlap.verify.verifier import SandboxVerifier
from sandbox.core.nouns import Judgement, Program, Verdict
from sandbox.errors import WorkerDied


@pytest.mark.promise("deadlines")
async def test_a_sandbox_that_answers_nobody_is_killed_and_its_samples_are_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("overlap.verify.guarded_pool.job_limit_s", lambda problem: 0.05)
    hung = hanging()

    async def answer(program: Program) -> Judgement:
        if hung.poll() is None:
            await asyncio.to_thread(hung.wait)
            raise WorkerDied("the supervisor died")
        return judgement()

    pool = StandIn(answer)
    pool.children = (hung.pid,)
    verifier = SandboxVerifier(config(), Judged(), pool=lambda: pool, judge_once=False)
    scored = await asyncio.gather(*(verifier.score(trajectory("x", k)) for k in range(3)))
    assert [s.reward for s in scored] == [1.0] * 3
    await verifier.close()
    assert hung.returncode == -signal.SIGKILL


class OverNodes(StandIn):
    """A pool over nodes that judge twelve programs at once."""

    concurrency = 12

    def take_nodes(self) -> ClusterFigures:
        return ClusterFigures(1.0, ())


@pytest.mark.parametrize(("pool", "expected"), [(StandIn, (1, None)), (OverNodes, (12, ClusterFigures(1.0, ())))])
async def test_a_pool_over_nodes_says_how_much_it_judges_at_once_and_what_its_nodes_did(
    pool: Any, expected: Any
) -> None:
    verifier = SandboxVerifier(config(workers=1), Judged(), pool=lambda: pool(says(Verdict.AC)))
    assert (verifier.concurrency, verifier.take_nodes()) == (1, None)  # it has not begun
    await verifier.score(trajectory("x"))
    assert (verifier.concurrency, verifier.take_nodes()) == expected
    await verifier.close()
