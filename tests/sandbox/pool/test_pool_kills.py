"""Whoever is killed with -9, and whenever: every job is answered rightly, and nothing is left."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from pooling import LONG, RIGHT, SLEEPER, SUM, WRONG, family, killed, living, parts, pool_of, pooled, until
from wide import wide

import sandbox
from sandbox import Judgement, Pool, Program, Verdict
from sandbox.errors import EARLY_MAX

JOBS = 120


def program(number: int) -> Program:
    """Odd ones are wrong; no two are equal."""
    return Program(f"print(sum(map(int, input().split())) + {number % 2})  # {number}")


async def kill(pool: Pool, victim: str) -> None:
    """Kill a living part of the pool, as soon as there is one."""

    def struck() -> bool:
        with suppress(psutil.NoSuchProcess):
            found = [psutil.Process(pid) for pid in pool.pids()] if victim == "supervisor" else parts(pool, victim)
            if found:
                found[0].kill()
                return True
        return False

    await until(struck)


@pytest.mark.promise("pool")
@pytest.mark.parametrize("seed", [0, wide(1), wide(2)])
@pooled(2)
async def test_with_hundreds_in_flight_no_kill_loses_one_or_makes_one_wrong(pool: Pool, seed: int) -> None:
    rng = random.Random(seed)
    victims = ["worker", "waiter", "keeper", "supervisor", "worker", "supervisor"]
    rng.shuffle(victims)
    moments = dict(zip(sorted(rng.sample(range(1, JOBS - 20), len(victims))), victims, strict=True))
    answers = 0

    async def ask(number: int) -> Judgement:
        nonlocal answers
        done = await pool.judge(SUM, program(number))
        answers += 1
        if answers in moments:
            await kill(pool, moments[answers])
        return done

    done = await asyncio.gather(*(ask(number) for number in range(JOBS)))
    stats = pool.stats()
    assert (stats.done, stats.queued, stats.running) == (JOBS, 0, 0)
    assert [one for k, one in enumerate(done) if one.verdict is not (Verdict.AC, Verdict.WA)[k % 2]] == []
    assert dict(stats.verdicts) == {"AC": JOBS // 2, "WA": JOBS // 2}
    assert [len(judgement.cases) for judgement in done] == [2, 1] * (JOBS // 2)


@pytest.mark.promise("pool")
@pooled(1)
async def test_supervisors_that_die_one_after_the_other_lose_nothing_that_waits(pool: Pool) -> None:
    tasks = [asyncio.create_task(pool.judge(SUM, program(number))) for number in range(30)]
    for answered in range(3, 3 * EARLY_MAX + 4, 3):  # more often than one job may be tried
        await until(lambda: sum(task.done() for task in tasks) >= answered)  # noqa: B023 - awaited at once
        await kill(pool, "supervisor")
    done = await asyncio.gather(*tasks)
    assert [judgement.verdict for judgement in done] == [Verdict.AC, Verdict.WA] * 15


@pooled(1)
async def test_a_program_that_is_killed_twice_is_its_own_end_and_nobody_elses(pool: Pool) -> None:
    await pool.judge(LONG, WRONG)  # what a jail runs to prove itself is over
    tasks = [asyncio.create_task(pool.judge(LONG, SLEEPER))]
    await until(lambda: len(parts(pool, "program")) == 1)
    tasks += [asyncio.create_task(pool.judge(SUM, RIGHT)) for _ in range(5)]
    once = {each.pid for each in parts(pool, "program")}
    await kill(pool, "program")
    await until(lambda: bool({each.pid for each in parts(pool, "program")} - once))
    await kill(pool, "program")
    first, *rest = await asyncio.gather(*tasks)
    assert (first.verdict, {judgement.verdict for judgement in rest}) == (Verdict.RE, {Verdict.AC})
    assert pool.stats().infrastructure_failures == 0


FORKER = Program("import os, time\nif os.fork() == 0: os.setsid()\ntime.sleep(90)")


@pytest.mark.promise("leftovers")
@pytest.mark.parametrize("tier", ["A", wide("B")])
@pytest.mark.parametrize("victim", ["supervisor", "worker", "waiter"])
def test_what_a_program_has_started_dies_with_any_part_of_the_pool(victim: str, tier: str) -> None:
    async def main() -> None:
        async with pool_of(1, isolation=tier) as pool:
            task = asyncio.create_task(pool.judge(LONG, FORKER))
            await until(lambda: len(parts(pool, "waiter")) == 1 and len(family(pool.pids()[0])) >= 4 + (tier == "A"))
            inside = family(parts(pool, "waiter")[0].pid)
            await kill(pool, victim)
            assert not living(inside)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())


CALLER = """
import asyncio, signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests in the background ignores it
from sandbox import Case, Limits, Pool, Problem, Program
async def main():
    problem = Problem("p", "stdio", (Case("", "ok"),), limits=Limits(cpu_s=5, wall_s=100))
    async with Pool(2, oversubscribe=True) as pool:
        tasks = [asyncio.create_task(pool.judge(problem, Program({source!r} + f"  # {{k}}"))) for k in range(220)]
        for k, task in enumerate(asyncio.as_completed(tasks)):
            print(k, flush=True)
            await task
asyncio.run(main())
"""
ALONE = """
import sandbox
problem = sandbox.Problem("p", "stdio", (sandbox.Case("", "ok"),), limits=sandbox.Limits(cpu_s=5, wall_s=100))
print("0", flush=True)
sandbox.judge(problem, sandbox.Program("import os, time; os.fork(); time.sleep(90)"), isolation="{tier}")
"""


@pytest.mark.promise("nothing-left")
@pytest.mark.parametrize(("answers", "processes"), [(0, 1), wide(0, 3), wide(1, 1), (60, 1), wide(150, 1)])
def test_a_caller_killed_with_hundreds_in_flight_leaves_nothing(answers: int, processes: int, tmp_path: Path) -> None:
    killed(CALLER.format(source="print('ok')"), tmp_path, answers, processes)


@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGINT])
def test_a_caller_that_ends_takes_what_its_programs_have_started_along(by: signal.Signals, tmp_path: Path) -> None:
    killed(
        CALLER.format(source=FORKER.source), tmp_path, 1, 11, by
    )  # supervisor, 2 x (worker, waiter, keeper, program, child)


@pytest.mark.parametrize(
    ("tier", "processes"), [wide("A", 0), ("A", 1), wide("A", 2), ("A", 3), wide("A", 5), wide("B", 2), ("B", 4)]
)
def test_a_single_judgement_whose_process_is_killed_leaves_nothing(tier: str, processes: int, tmp_path: Path) -> None:
    killed(ALONE.format(tier=tier), tmp_path, 1, processes)


def test_a_single_judgement_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = set(family(os.getpid()))
    assert sandbox.judge(SUM, RIGHT).verdict is Verdict.AC
    assert set(family(os.getpid())) == before
    assert not any(tmp_path.iterdir())
