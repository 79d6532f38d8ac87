"""A program under which every judge dies: a verdict against it, while the machine judges others well."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from pooling import LONG, RIGHT, SLEEPER, SUM, members, pool_of, until
from wide import wide

import sandbox
from sandbox import Case, Judgement, Pool, Problem, Program, SandboxError, Verdict
from sandbox.errors import EARLY_MAX, TRIES_MAX, Deaths, TookDown, WorkerDied
from sandbox.jail.tree import Tree
from sandbox.judging import Judge, control
from sandbox.languages import Language, find_language


async def kill_while(pool: Pool, task: asyncio.Task[Judgement], times: int) -> None:
    """Kill the worker whose jail has the program, so often: what a program that reaches its judge would do."""
    link, controls = pool._link, set[int]()
    assert link is not None
    sample = control.sample

    def ask_control(language: Language) -> tuple[Problem, Program]:
        controls.add(link.next_id + 1)
        return sample(language)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(control, "sample", ask_control)
        while not task.done() and times:
            await asyncio.sleep(0.02)
            if any(map(link.flags.is_handed, link.asked.keys() - controls)):
                struck = members(pool, "worker")
                for process in struck:
                    process.kill()
                psutil.wait_procs(struck, 20)
                times -= bool(struck)


def test_who_takes_down_workers_before_and_after_the_control_gets_a_verdict_and_no_mask() -> None:
    async def main() -> None:
        async with pool_of(1) as pool:
            await pool.judge(SUM, RIGHT)
            task = asyncio.create_task(pool.judge(LONG, SLEEPER))
            await kill_while(pool, task, 2 * TRIES_MAX)
            done = await task
            assert (done.verdict, done.passed, done.total) == (Verdict.RE, 0, 1)
            assert done.cases[0].message.startswith("took down its judge")
            assert pool.stats().infrastructure_failures == 2 * TRIES_MAX
            assert (await pool.judge(SUM, RIGHT)).verdict is Verdict.AC

    asyncio.run(main())


HELD = """
import os, time
while os.path.exists(os.path.join(os.path.dirname(__file__), "hold")):
    time.sleep(0.01)
"""


async def kill_starting(pool: Pool, part: str) -> None:
    """As soon as a worker starts its jail."""

    def struck() -> bool:
        with suppress(psutil.NoSuchProcess):
            for worker in members(pool, "worker") if pool.pids() else ():
                for zygote in set(members(pool, "zygote")) & set(worker.children()):
                    found = {"supervisor": worker.parent(), "worker": worker, "zygote": zygote}[part]
                    assert found is not None
                    found.kill()
                    psutil.wait_procs([found], 20)
                    return True
        return False

    await until(struck)


@pytest.mark.parametrize("part", ["supervisor", wide("worker"), wide("zygote")])
def test_who_dies_before_the_program_is_in_a_jail_does_not_die_of_it(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "held"  # no jail is ready before it is imported
    package.mkdir()
    (package / "__init__.py").write_text(HELD)
    (package / "hold").touch()
    monkeypatch.syspath_prepend(tmp_path)

    async def main() -> None:
        async with pool_of(1, packages=("held",)) as pool:
            task = asyncio.create_task(pool.judge(SUM, RIGHT))
            for _ in range(TRIES_MAX):
                await kill_starting(pool, part)
            (package / "hold").unlink()
            assert (await task).verdict is Verdict.AC
            assert pool.stats().infrastructure_failures == TRIES_MAX

    asyncio.run(main())


def test_a_single_judgement_whose_jail_dies_at_its_start_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    start, left = Tree._start, [WorkerDied("the jail's zygote died")] * TRIES_MAX

    def die(self: Tree, *given: Any) -> dict[str, Any]:
        if left:
            raise left.pop()
        return start(self, *given)

    monkeypatch.setattr(Tree, "_start", die)
    assert sandbox.judge(SUM, RIGHT).verdict is Verdict.AC
    left += [WorkerDied("the jail's zygote died")] * EARLY_MAX
    with pytest.raises(WorkerDied, match="zygote died") as raised:
        sandbox.judge(SUM, RIGHT)
    assert raised.type is WorkerDied


def test_a_program_is_suspected_after_so_many_deaths_under_it_whoever_died_before() -> None:
    deaths, error = Deaths(), WorkerDied("gone")
    assert [deaths.add(error, handed=False) for _ in range(EARLY_MAX - 1)] == [None] * (EARLY_MAX - 1)
    assert [deaths.add(error, handed=True) for _ in range(TRIES_MAX - 1)] == [None] * (TRIES_MAX - 1)
    assert type(deaths.add(error, handed=True)) is TookDown
    assert deaths.add(error, handed=False) is error


def test_such_a_verdict_is_handed_to_nobody_else() -> None:
    error = TookDown("gone")
    fine = sandbox.judge(*control.sample(find_language("python")))
    assert not sandbox.pool.judgement_cache.repeatable(control.take_down(SUM, fine, error), SUM.limits)
    assert sandbox.pool.judgement_cache.repeatable(fine, SUM.limits)


def test_workers_that_die_under_it_by_chance_cost_a_program_nothing() -> None:
    async def main() -> None:
        async with pool_of(1) as pool:
            await pool.judge(SUM, RIGHT)
            slow = Problem("slow", "stdio", (Case("", "7"),), limits=LONG.limits)
            task = asyncio.create_task(pool.judge(slow, Program("import time\ntime.sleep(1)\nprint(7)")))
            await kill_while(pool, task, TRIES_MAX)
            assert (await task).verdict is Verdict.AC
            assert pool.stats().infrastructure_failures == TRIES_MAX

    asyncio.run(main())


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
    assert [problem.id for problem in asked] == ["sum"] * 3 + ["control"] + ["sum"] * 3


def test_where_the_control_dies_too_it_is_our_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    told(monkeypatch, control_dies=True)
    with pytest.raises(WorkerDied):
        sandbox.judge(SUM, RIGHT)


@pytest.mark.parametrize("verdict", [Verdict.WA, wide(Verdict.RE), wide(Verdict.CE)])
def test_a_control_that_is_not_accepted_accuses_nobody(verdict: Verdict) -> None:
    wire: dict[str, Any] = sandbox.judge(*control.sample(find_language("python"))).to_json()
    failed = Judgement.from_json({**wire, "verdict": verdict})
    with pytest.raises(SandboxError, match="gone"):
        control.take_down(SUM, failed, TookDown("gone"))
