"""The pool: one answer per job, nothing lost, nothing left, whoever is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from pooling import LONG, RIGHT, SLEEPER, SUM, WRONG, family, living, members, pool_of, until

import sandbox
from sandbox import Case, Judgement, Pool, Problem, Program, SandboxError, Verdict
from sandbox.errors import PoolClosed, ToolchainMissing


def test_many_jobs_get_one_answer_each_in_their_own_order() -> None:
    async def main() -> list[Judgement]:
        async with pool_of(2) as pool:
            programs = [RIGHT, WRONG] * 20
            done = await asyncio.gather(*(pool.judge(SUM, program) for program in programs))
            stats = pool.stats()
            assert (stats.done, stats.queued, stats.running) == (40, 0, 0)
            assert dict(stats.verdicts) == {"AC": 20, "WA": 20}
            assert stats.infrastructure_failures == 0
            assert stats.busy_s > 0
            return done

    done = asyncio.run(main())
    assert [judgement.verdict for judgement in done] == [Verdict.AC, Verdict.WA] * 20
    assert {judgement.tier for judgement in done} <= {"A", "B"}
    assert [len(judgement.cases) for judgement in done[:2]] == [2, 2]


def test_programs_find_the_packages_that_the_pool_was_given() -> None:
    pytest.importorskip("numpy")
    problem, program = Problem("p", "stdio", (Case("", "6"),)), Program("import numpy\nprint(numpy.arange(4).sum())")

    async def main(*packages: str) -> Judgement:
        async with pool_of(1, packages=packages) as pool:
            return await pool.judge(problem, program)

    assert asyncio.run(main("numpy")).verdict is Verdict.AC
    assert asyncio.run(main()).verdict is Verdict.RE


def test_a_pool_is_not_made_for_a_package_that_is_not_installed() -> None:
    with pytest.raises(ToolchainMissing, match="packages='no_such_package'"):
        Pool(packages=("no_such_package",))


def test_a_pool_is_made_without_a_loop_and_starts_nothing() -> None:
    before = set(family(os.getpid()))
    pool = Pool(2)
    assert pool.pids() == ()
    assert set(family(os.getpid())) == before


def test_a_pool_works_in_one_loop_after_another() -> None:
    pool = Pool(1)

    async def once() -> Verdict:
        return (await pool.judge(SUM, RIGHT)).verdict

    assert asyncio.run(once()) is Verdict.AC
    assert asyncio.run(once()) is Verdict.AC
    asyncio.run(pool.close())


def test_a_closed_pool_says_so() -> None:
    async def main() -> None:
        async with pool_of(1) as pool:
            waiting = asyncio.create_task(pool.judge(LONG, SLEEPER))
            await until(lambda: pool.stats().running == 1)
            await pool.close()
            with pytest.raises(PoolClosed):
                await waiting
            with pytest.raises(PoolClosed):
                await pool.judge(SUM, RIGHT)

    asyncio.run(main())


def test_cancelling_the_await_frees_the_worker() -> None:
    async def main() -> None:
        async with pool_of(1) as pool:
            task = asyncio.create_task(pool.judge(LONG, SLEEPER))
            await until(lambda: pool.stats().running == 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await pool.judge(SUM, RIGHT)).verdict is Verdict.AC
            assert pool.stats().infrastructure_failures == 0

    asyncio.run(main())


def test_a_cancelled_job_in_the_queue_never_runs() -> None:
    async def main() -> None:
        async with pool_of(1) as pool:
            first = asyncio.create_task(pool.judge(LONG, SLEEPER))
            await until(lambda: pool.stats().running == 1)
            second = asyncio.create_task(pool.judge(LONG, SLEEPER))
            third = asyncio.create_task(pool.judge(SUM, RIGHT))
            await until(lambda: pool.stats().queued == 2)
            second.cancel()
            first.cancel()
            assert (await third).verdict is Verdict.AC
            assert pool.stats().done == 1

    asyncio.run(main())


def test_the_queue_is_bounded_and_makes_callers_wait() -> None:
    async def main() -> None:
        async with pool_of(1, queue_limit=2) as pool:
            await pool.judge(SUM, RIGHT)
            tasks = [asyncio.create_task(pool.judge(LONG, SLEEPER)) for _ in range(5)]
            await until(lambda: pool.stats().running == 1)
            assert pool._link is not None
            assert len(pool._link.asked) == 2
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(main())


CALLER = """
import asyncio, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests in the background ignores it
from sandbox import Case, Limits, Pool, Problem, Program
async def main():
    async with Pool(2, judge_once=False, oversubscribe=True) as pool:
        problem = Problem("p", "stdio", (Case("", "ok"),), limits=Limits(cpu_s=5, wall_s=100))
        program = Program("import os, time\\nif os.fork() == 0: os.setsid()\\ntime.sleep(90)")
        tasks = [asyncio.create_task(pool.judge(problem, program)) for _ in range(4)]
        while pool.stats().running < 2:
            await asyncio.sleep(0.01)
        print("running", flush=True)
        await asyncio.gather(*tasks)
asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_caller_leaves_no_process_and_no_file(number: signal.Signals, tmp_path: Path) -> None:
    root = Path(sandbox.__file__).parents[1]
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(root)}
    command = [sys.executable, "-c", textwrap.dedent(CALLER)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment) as caller:
        try:
            assert caller.stdout is not None
            assert caller.stdout.readline() == b"running\n"
            asyncio.run(until(lambda: len(family(caller.pid)) >= 11))  # supervisor, 2 x (worker, jail, program, child)
            below = family(caller.pid)
            caller.send_signal(number)
            caller.wait(30)
        finally:
            caller.kill()
    assert not living(below)
    assert list(tmp_path.iterdir()) == []


def test_directories_of_dead_owners_are_swept_and_others_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tempfile

    from sandbox.kernel import reserve_directory
    from sandbox.kernel.orphan_cleanup import remove_orphans

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    mine = Path(reserve_directory())
    pid, _, namespace = mine.name.removeprefix("overlap-sandbox-").split("-")[:3]
    dead = tmp_path / f"overlap-sandbox-{pid}-1-{namespace}-abc"
    containers = tmp_path / f"overlap-sandbox-{pid}-1-{int(namespace) + 1}-abc"  # its pid 1 may live
    other = tmp_path / "something-else"
    for path in (mine, dead, containers, other):
        path.mkdir()
    remove_orphans()
    assert sorted(tmp_path.iterdir()) == sorted([mine, containers, other])


def test_a_pools_own_folder_lies_where_it_is_told_to(tmp_path: Path) -> None:
    async def main() -> None:
        async with Pool(1, directory=str(tmp_path)) as pool:
            await pool.judge(SUM, RIGHT)
            assert [name.startswith("overlap-sandbox-") for name in os.listdir(tmp_path)] == [True]

    asyncio.run(main())
    assert list(tmp_path.iterdir()) == []


def test_descriptors_of_worker_and_jail_stay_flat() -> None:
    def open_files(pool: Pool) -> list[int]:
        return sorted(p.num_fds() for name in ("worker", "zygote") for p in members(pool, name))

    async def main() -> None:
        async with pool_of(1) as pool:
            await pool.judge(SUM, RIGHT)
            before = open_files(pool)
            await asyncio.gather(*(pool.judge(SUM, RIGHT) for _ in range(50)))
            # An answer may come before all of its run is cleared away, here and above: so no more is not the same.
            await until(lambda: all(now <= then for now, then in zip(open_files(pool), before, strict=True)))

    asyncio.run(main())


def test_invalid_sizes_are_refused() -> None:
    for options in ({"workers": 0}, {"queue_limit": 0}):
        with pytest.raises(ValueError, match="at least 1"):
            Pool(**options)  # type: ignore[arg-type]


def test_an_unknown_isolation_is_our_error_and_no_verdict() -> None:
    async def main() -> None:
        async with pool_of(1, isolation="Z") as pool:
            with pytest.raises(SandboxError, match="isolation='Z'"):
                await pool.judge(SUM, RIGHT)

    asyncio.run(main())
