"""The pool: one answer per job, nothing lost, nothing left."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from pooling import LONG, RIGHT, SLEEPER, SUM, WRONG, family, members, pool_of, pooled, until

from sandbox import Case, Judgement, Pool, Problem, Program, SandboxError, Verdict
from sandbox.errors import PoolClosed, ToolchainMissing
from sandbox.kernel import orphan_cleanup
from sandbox.kernel.orphan_cleanup import remove_orphans, reserve_directory
from sandbox.pool import link


@pytest.mark.promise("pool")
@pooled(2)
async def test_many_jobs_get_one_answer_each_in_their_own_order(pool: Pool) -> None:
    done = await asyncio.gather(*(pool.judge(SUM, program) for program in [RIGHT, WRONG] * 20))
    stats = pool.stats()
    assert (stats.done, stats.queued, stats.running) == (40, 0, 0)
    assert dict(stats.verdicts) == {"AC": 20, "WA": 20}
    assert stats.infrastructure_failures == 0
    assert stats.busy_s > 0
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


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"packages": ("no_such_package",)}, ToolchainMissing, "packages='no_such_package'"),
        ({"workers": 0}, ValueError, "at least 1"),
        ({"queue_limit": 0}, ValueError, "at least 1"),
    ],
)
def test_a_pool_that_could_not_work_is_not_made(options: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        Pool(**options)


@pooled(1, isolation="Z")
async def test_an_unknown_isolation_is_our_error_and_no_verdict(pool: Pool) -> None:
    with pytest.raises(SandboxError, match="isolation='Z'"):
        await pool.judge(SUM, RIGHT)


@pytest.mark.promise("construction")
def test_a_pool_is_made_without_a_loop_and_starts_nothing() -> None:
    before = set(family(os.getpid()))
    pool = Pool(2)
    assert pool.pids() == ()
    assert set(family(os.getpid())) == before


def test_a_pool_works_in_one_loop_after_another() -> None:
    pool = Pool(1)
    for _ in range(2):
        assert asyncio.run(pool.judge(SUM, RIGHT)).verdict is Verdict.AC
    asyncio.run(pool.close())


@pooled(1)
async def test_a_pool_that_judged_nothing_ends_without_a_kill(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "_CLOSE_S", 60.0)
    assert pool._link is not None
    supervisor = pool._link.process
    await pool.close()
    assert supervisor.returncode == 0


@pooled(1)
async def test_a_closed_pool_says_so(pool: Pool) -> None:
    waiting = asyncio.create_task(pool.judge(LONG, SLEEPER))
    await until(lambda: pool.stats().running == 1)
    await pool.close()
    for judged in (waiting, pool.judge(SUM, RIGHT)):
        with pytest.raises(PoolClosed):
            await judged


@pooled(1)
async def test_cancelling_frees_the_worker_and_what_is_cancelled_in_the_queue_never_runs(pool: Pool) -> None:
    first = asyncio.create_task(pool.judge(LONG, SLEEPER))
    await until(lambda: pool.stats().running == 1)
    second = asyncio.create_task(pool.judge(LONG, SLEEPER))
    third = asyncio.create_task(pool.judge(SUM, RIGHT))
    await until(lambda: pool.stats().queued == 2)
    for cancelled in (second, first):
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
    assert (await third).verdict is Verdict.AC
    assert (pool.stats().done, pool.stats().infrastructure_failures) == (1, 0)


@pooled(1, queue_limit=2)
async def test_the_queue_is_bounded_and_makes_callers_wait(pool: Pool) -> None:
    await pool.judge(SUM, RIGHT)
    tasks = [asyncio.create_task(pool.judge(LONG, SLEEPER)) for _ in range(5)]
    await until(lambda: pool.stats().running == 1)
    assert pool._link is not None
    assert len(pool._link.asked) == 2
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def test_directories_of_dead_owners_are_swept_and_others_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    mine = Path(reserve_directory())
    pid, _, namespace = mine.name.removeprefix("ovl-").split("-")[:3]
    dead = tmp_path / f"ovl-{pid}-1-{namespace}-abc"
    containers = tmp_path / f"ovl-{pid}-1-{int(namespace, 16) + 1:x}-abc"  # its pid 1 may live
    runs = tmp_path / "ovl-0123abcd"  # not ours: its reaper removes it
    for path in (mine, dead, containers, runs):
        path.mkdir()
    remove_orphans()
    assert sorted(tmp_path.iterdir()) == sorted([mine, containers, runs])


def test_the_name_of_a_directory_leaves_room_for_a_socket_below(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as longest:
        longest.setattr(os, "getpid", lambda: 1 << 22)
        longest.setattr(orphan_cleanup, "_namespace", lambda: (1 << 32) - 1)
        longest.setattr(orphan_cleanup, "_started", lambda pid: 20 * 365 * 86_400 * 100)  # after 20 years
        name = Path(reserve_directory()).name
    in_a_call = f"/{'t' * 19}/{name}/99999/a/b"
    assert len(f"{in_a_call}/pymp-xxxxxxxx/listener-xxxxxxxx") < 100


def test_a_pools_own_folder_lies_where_it_is_told_to(tmp_path: Path) -> None:
    async def main() -> None:
        async with Pool(1, directory=str(tmp_path)) as pool:
            await pool.judge(SUM, RIGHT)
            assert [name.startswith("ovl-") for name in os.listdir(tmp_path)] == [True]

    asyncio.run(main())
    assert list(tmp_path.iterdir()) == []


@pooled(1)
async def test_descriptors_of_worker_and_jail_stay_flat(pool: Pool) -> None:
    def open_files() -> list[int]:
        return sorted(p.num_fds() for name in ("worker", "zygote") for p in members(pool, name))

    await pool.judge(SUM, RIGHT)
    before = open_files()
    await asyncio.gather(*(pool.judge(SUM, RIGHT) for _ in range(50)))
    # An answer may come before all of its run is cleared away, here and above: so no more is not the same.
    await until(lambda: all(now <= then for now, then in zip(open_files(), before, strict=True)))
