"""A program under which every judge dies: a verdict against it, while the machine judges others well."""

from __future__ import annotations

import asyncio
from typing import Any

import psutil
import pytest
from pooling import LONG, RIGHT, SLEEPER, SUM, members, pool_of

import sandbox
from sandbox import Judgement, Pool, Problem, Program, SandboxError, Verdict
from sandbox.errors import WorkerDied
from sandbox.judging import Judge, control
from sandbox.languages import find


async def kill_while(pool: Pool, task: asyncio.Task[Judgement], times: int) -> None:
    """Kill every worker that runs a job, so often: what a program that reaches its judge would do."""
    while not task.done() and times:
        await asyncio.sleep(0.02)
        if pool.stats().running:
            struck = [process for process in members(pool, "worker") if process.children()]
            for process in struck:
                process.kill()
            psutil.wait_procs(struck, 20)
            times -= bool(struck)


def test_the_third_worker_that_dies_is_a_verdict_and_not_a_masked_sample() -> None:
    async def main() -> None:
        async with pool_of(1) as pool:
            await pool.judge(SUM, RIGHT)
            task = asyncio.create_task(pool.judge(LONG, SLEEPER))
            await kill_while(pool, task, 3)
            done = await task
            assert (done.verdict, done.passed, done.total) == (Verdict.RE, 0, 1)
            assert done.cases[0].message.startswith("took down its judge")
            assert pool.stats().infrastructure_failures == 3
            assert (await pool.judge(SUM, RIGHT)).verdict is Verdict.AC

    asyncio.run(main())


def test_such_a_verdict_is_handed_to_nobody_else() -> None:
    error = WorkerDied("gone")
    fine = sandbox.judge(*control.sample(find("python")))
    assert not sandbox.pool.once.repeatable(control.take_down(SUM, fine, error), SUM.limits)
    assert sandbox.pool.once.repeatable(fine, SUM.limits)


def told(monkeypatch: pytest.MonkeyPatch, *, control_dies: bool) -> list[Problem]:
    """Judges that die under every program but the control, or under all; the problems that they were asked."""
    asked: list[Problem] = []
    judge = Judge.judge

    def die(self: Judge, problem: Problem, program: Program) -> Judgement:
        asked.append(problem)
        if problem.id == "control" and not control_dies:
            return judge(self, problem, program)
        raise WorkerDied("the jail failed: x")

    monkeypatch.setattr(Judge, "judge", die)
    return asked


def test_a_single_judgement_says_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = told(monkeypatch, control_dies=False)
    done = sandbox.judge(SUM, RIGHT)
    assert (done.verdict, done.cases[0].message[:19]) == (Verdict.RE, "took down its judge")
    assert [problem.id for problem in asked] == ["sum"] * 3 + ["control"]


def test_where_the_control_dies_too_it_is_our_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    told(monkeypatch, control_dies=True)
    with pytest.raises(WorkerDied):
        sandbox.judge(SUM, RIGHT)


@pytest.mark.parametrize("verdict", [Verdict.WA, Verdict.RE, Verdict.CE])
def test_a_control_that_is_not_accepted_accuses_nobody(verdict: Verdict) -> None:
    wire: dict[str, Any] = sandbox.judge(*control.sample(find("python"))).to_json()
    failed = Judgement.from_json({**wire, "verdict": verdict})
    with pytest.raises(SandboxError, match="gone"):
        control.take_down(SUM, failed, WorkerDied("gone"))
