"""A program under which every judge dies or hangs: a verdict against it, while the machine judges others well."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from pooling import LONG, RIGHT, SLEEPER, SUM, members, pool_of, pooled, until
from wide import wide

import sandbox
from sandbox import Case, Judgement, Pool, Problem, Program, SandboxError, Verdict
from sandbox.errors import EARLY_MAX, HANGS_MAX, TRIES_MAX, Deaths, HeldUp, TookDown, WorkerDied, WorkerHung
from sandbox.jail.tree import Tree
from sandbox.judging import control
from sandbox.judging.judge import Judge
from sandbox.languages.language import Language
from sandbox.languages.table import find_language
from sandbox.pool.link import Link, Ticket, TryFailed

DIED, HUNG = WorkerDied("the worker died"), WorkerHung("a worker does not answer")


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


@pytest.mark.promise("programs-faults")
@pooled(1)
async def test_who_takes_down_workers_before_and_after_the_control_gets_a_verdict_and_no_mask(pool: Pool) -> None:
    await pool.judge(SUM, RIGHT)
    task = asyncio.create_task(pool.judge(LONG, SLEEPER))
    await kill_while(pool, task, 2 * TRIES_MAX)
    done = await task
    assert (done.verdict, done.passed, done.total) == (Verdict.RE, 0, 1)
    assert done.cases[0].message.startswith("took down its judge")
    assert pool.stats().infrastructure_failures == 2 * TRIES_MAX
    assert (await pool.judge(SUM, RIGHT)).verdict is Verdict.AC


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
    start, left = Tree._start, [DIED] * TRIES_MAX

    def die(self: Tree, *given: Any) -> dict[str, Any]:
        if left:
            raise left.pop()
        return start(self, *given)

    monkeypatch.setattr(Tree, "_start", die)
    assert sandbox.judge(SUM, RIGHT).verdict is Verdict.AC
    left += [DIED] * EARLY_MAX
    with pytest.raises(WorkerDied, match="the worker died") as raised:
        sandbox.judge(SUM, RIGHT)
    assert raised.type is WorkerDied


EARLY = [(DIED, False)] * (EARLY_MAX - 1) + [(DIED, True)] * (TRIES_MAX - 1)


@pytest.mark.parametrize(
    ("hangs_max", "before", "last", "becomes"),
    [
        (HANGS_MAX, EARLY, (DIED, True), TookDown),
        (HANGS_MAX, EARLY, (DIED, False), WorkerDied),
        (HANGS_MAX, [(HUNG, False), *[(HUNG, True)] * (HANGS_MAX - 1)], (HUNG, True), HeldUp),
        (HANGS_MAX, [(DIED, True)] * (TRIES_MAX - 1), (HUNG, True), TookDown),
        (1, [(DIED, True), (HUNG, False)], (HUNG, True), HeldUp),
    ],
)
def test_a_program_is_suspected_after_so_many_deaths_or_hangs_under_it_whoever_died_before(
    hangs_max: int, before: list[tuple[WorkerDied, bool]], last: tuple[WorkerDied, bool], becomes: type[WorkerDied]
) -> None:
    deaths = Deaths(hangs_max)
    assert [deaths.add(error, handed=handed) for error, handed in before] == [None] * len(before)
    assert type(deaths.add(last[0], handed=last[1])) is becomes


@pytest.mark.parametrize("hangs_max", [HANGS_MAX, 1])
@pooled(1)
async def test_a_job_under_which_workers_hang_is_given_up_after_so_many(
    pool: Pool, hangs_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0

    async def hang(*given: Any) -> Judgement:
        nonlocal asked
        asked += 1
        raise TryFailed(HUNG, handed=True)

    monkeypatch.setattr(Link, "ask", hang)
    with pytest.raises(HeldUp):
        await pool._with_link(lambda link: link.ask({}, b"", Ticket(pool._counts)), hangs_max)
    assert asked == pool.stats().infrastructure_failures == hangs_max


@pytest.mark.parametrize(("error", "left"), [(HeldUp, 1), (TookDown, HANGS_MAX)])
@pooled(1)
async def test_after_the_control_one_more_hang_will_do_if_there_were_some_before(
    pool: Pool, error: type[TookDown], left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, int]] = []
    ask = Pool._ask_whole

    async def fail(pool: Pool, job: Any, ticket: Any) -> Judgement:
        asked.append((job.problem.id, job.hangs_max))
        if job.problem.id == SUM.id:
            raise error("a worker does not answer")
        return await ask(pool, job, ticket)

    monkeypatch.setattr(Pool, "_ask_whole", fail)
    done = await pool.judge(SUM, RIGHT)
    assert (done.verdict, done.cases[0].message[:19]) == (Verdict.RE, "took down its judge")
    assert asked == [("sum", HANGS_MAX), ("control", HANGS_MAX), ("sum", left)]


def test_such_a_verdict_is_handed_to_nobody_else() -> None:
    error = TookDown("gone")
    fine = sandbox.judge(*control.sample(find_language("python")))
    done = control.take_down(SUM, fine, error)
    assert (done.score, len(done.cases)) == (0.0, len(SUM.cases)), "a program could end a run that asks for its score"
    assert not sandbox.pool.judgement_cache.repeatable(done, SUM.limits)
    assert sandbox.pool.judgement_cache.repeatable(fine, SUM.limits)


@pooled(1)
async def test_workers_that_die_under_it_by_chance_cost_a_program_nothing(pool: Pool) -> None:
    await pool.judge(SUM, RIGHT)
    slow = Problem("slow", "stdio", (Case("", "7"),), limits=LONG.limits)
    task = asyncio.create_task(pool.judge(slow, Program("import time\ntime.sleep(1)\nprint(7)")))
    await kill_while(pool, task, TRIES_MAX)
    assert (await task).verdict is Verdict.AC
    assert pool.stats().infrastructure_failures == TRIES_MAX


def test_a_single_judgement_says_it_too_and_where_the_control_dies_it_is_our_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, control_dies, judge = list[str](), False, Judge.judge

    def die(self: Judge, problem: Problem, program: Program) -> Judgement:
        asked.append(problem.id)
        if problem.id == "control" and not control_dies:
            return judge(self, problem, program)
        raise DIED

    monkeypatch.setattr(Judge, "judge", die)
    done = sandbox.judge(SUM, RIGHT)
    assert (done.verdict, done.cases[0].message[:19]) == (Verdict.RE, "took down its judge")
    assert asked == ["sum"] * 3 + ["control"] + ["sum"] * 3
    control_dies = True
    with pytest.raises(WorkerDied):
        sandbox.judge(SUM, RIGHT)


@pytest.mark.parametrize("verdict", [Verdict.WA, wide(Verdict.RE), wide(Verdict.CE)])
def test_a_control_that_is_not_accepted_accuses_nobody(verdict: Verdict) -> None:
    wire: dict[str, Any] = sandbox.judge(*control.sample(find_language("python"))).to_json()
    failed = Judgement.from_json({**wire, "verdict": verdict})
    with pytest.raises(SandboxError, match="gone"):
        control.take_down(SUM, failed, TookDown("gone"))
