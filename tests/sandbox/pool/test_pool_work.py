"""How a pool's workers share, spread and renew their work."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pooling import RIGHT, SUM, WRONG, pool_of, pooled
from toolchains import need
from wide import wide

from sandbox import Case, Judgement, Limits, Pool, Problem, Program, Verdict
from sandbox.languages.table import LANGUAGES
from sandbox.pool import worker as worker_module
from sandbox.pool.messages import SharedFlags
from sandbox.pool.problem_memfd import write
from sandbox.pool.worker import PoolWorker

BURN = Program("import time\nn = input()\nwhile time.process_time() < 0.04: pass\nprint(n)")


def burning(*wrong: int) -> Problem:
    cases = tuple(Case(str(k), "no" if k in wrong else str(k)) for k in range(8))
    return Problem("burn", "stdio", cases, limits=Limits(cpu_s=5, wall_s=60))


def bare(done: Judgement) -> list[tuple[int, Verdict, str]]:
    return [(case.index, case.verdict, case.message) for case in done.cases]


@pytest.mark.parametrize("stop", [True, wide(False)])
@pytest.mark.parametrize("wrong", [wide(()), wide((0,)), (3, 5)])
def test_slow_cases_on_idle_workers_give_the_same_judgement(wrong: tuple[int, ...], stop: bool) -> None:
    problem = burning(*wrong)

    async def main() -> None:
        async with pool_of(2, stop_at_first_failure=stop) as pool:
            whole = await pool.judge(problem, BURN)  # nothing is known of it yet
            spread = await pool.judge(problem, BURN)
            assert pool.stats().split == 1
            assert bare(spread) == bare(whole)
            assert replace(spread, cases=(), run_s=0, queue_s=0) == replace(whole, cases=(), run_s=0, queue_s=0)
            await asyncio.gather(*(pool.judge(problem, BURN) for _ in range(2)))
            assert pool.stats().split == 1  # each has its own worker

    asyncio.run(main())


@pooled(2, judge_once=True)
async def test_equal_programs_are_run_once_and_others_are_not(pool: Pool) -> None:
    done = await asyncio.gather(*(pool.judge(SUM, program) for program in [RIGHT, WRONG] * 5))
    done.append(await pool.judge(replace(SUM), Program(RIGHT.source, "py")))
    assert [judgement.verdict for judgement in done] == ["AC", "WA"] * 5 + ["AC"]
    assert [judgement.run_s > 0 for judgement in done] == [True] * 2 + [False] * 9
    await pool.judge(replace(SUM, compare="exact"), RIGHT)
    await pool.judge(SUM, Program(RIGHT.source + "\n"))
    stats = pool.stats()
    assert (stats.cache_hits, stats.done, stats.split) == (9, 13, 0)


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[PoolWorker]:
    mine, theirs = socket.socketpair()
    received, handles = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with mine, theirs, received, handles:
        worker = PoolWorker(theirs, handles, SharedFlags(), "auto", str(tmp_path), {})
        problem, _ = write(SUM)
        for _ in range(8):  # with each job its problem, as the supervisor sends it
            socket.send_fds(received, [b"+"], [problem.fd])
        yield worker
        worker.close()


def answer(worker: PoolWorker, source: str = RIGHT.source) -> dict[str, Any]:
    body = json.dumps({"program": {"source": source}, "task": "judge", "stop": True, "only": None}).encode()
    return worker.answer({"id": 1, "problem": "digest"}, body)


def test_a_jail_is_replaced_after_its_runs(worker: PoolWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "RECYCLE_AFTER_RUNS", 4)  # two jobs of two cases
    replies = [answer(worker) for _ in range(4)]
    assert [reply.get("recycled") for reply in replies] == [None, 1, None, 1]
    assert {reply["judgement"]["verdict"] for reply in replies} == {"AC"}


def test_a_jail_or_worker_that_has_grown_is_replaced(worker: PoolWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "WEIGH_EVERY", 2)
    monkeypatch.setattr(worker_module, "WORKER_BYTES_MAX", 1 << 40)  # whatever this process has imported by now
    assert [answer(worker).get("recycled") for _ in range(2)] == [None, None]
    monkeypatch.setattr(worker_module, "JAIL_BYTES_MAX", 1 << 20)
    assert [answer(worker).get("recycled") for _ in range(2)] == [None, 1]
    assert worker.jail is None
    monkeypatch.setattr(worker_module, "WORKER_BYTES_MAX", 1 << 20)
    last = [answer(worker) for _ in range(2)][1]
    assert (last["recycled"], last["retires"], last["judgement"]["verdict"]) == (2, True, "AC")


def test_nobody_pays_for_a_jail_in_which_our_own_program_fails(worker: PoolWorker) -> None:
    assert answer(worker)["judgement"]["verdict"] == "AC"
    spoilt = worker.jail
    assert spoilt is not None
    finish = spoilt.finish
    spoilt.finish = lambda **options: replace(finish(**options), exit_code=1)  # type: ignore[method-assign]
    reply = answer(worker)
    assert (reply["judgement"]["verdict"], reply["recycled"]) == ("AC", 1)
    assert worker.jail is not spoilt
    reply = answer(worker, "raise SystemExit(3)")
    assert (reply["judgement"]["verdict"], reply.get("recycled")) == ("RE", None)


def test_a_second_jail_that_has_grown_is_replaced_too(worker: PoolWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "WEIGH_EVERY", 1)
    monkeypatch.setattr(worker_module, "WORKER_BYTES_MAX", 1 << 40)
    assert answer(worker).get("recycled") is None
    assert worker.jail is not None
    second = worker.jail.partner().process.pid
    weigh = worker_module.resident
    grown = worker_module.JAIL_BYTES_MAX + 1
    monkeypatch.setattr(worker_module, "resident", lambda pid, **how: grown if pid == second else weigh(pid, **how))
    assert answer(worker).get("recycled") == 1
    assert worker.jail is None


@pytest.mark.parametrize("fresh", [True, False])
def test_where_our_own_program_fails_in_a_fresh_jail_it_is_our_fault(
    worker: PoolWorker, fresh: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = iter([False, False, fresh])
    monkeypatch.setattr(worker, "_is_sound", lambda: next(sound))
    reply = answer(worker, "raise SystemExit(3)")
    if fresh:  # the program spoils whatever jail it is in
        assert (reply["judgement"]["verdict"], reply["recycled"]) == ("RE", 2)
    else:
        assert reply["error"]["type"] == "SandboxError"
        assert "check program fails in a fresh jail" in reply["error"]["message"]
        assert worker.jail is None
    monkeypatch.undo()
    assert answer(worker)["judgement"]["verdict"] == "AC"


@pytest.mark.parametrize("isolation", ["B", wide("A")])
@pytest.mark.parametrize("place", [wide("open"), "closed"])
def test_a_pool_judges_what_is_compiled_wherever_its_directory_lies(isolation: str, place: str) -> None:
    """As root, programs of tier B are another user's, who must find what is theirs."""
    need("c")

    async def main() -> None:
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o711 if place == "open" else 0o700)
            async with pool_of(1, isolation=isolation, directory=folder) as pool:
                done = await pool.judge(SUM, Program(LANGUAGES["c"].samples.adds, "c"))
                assert done.verdict is Verdict.AC, done.compile_log

    asyncio.run(main())


@pooled(2, judge_once=True)
async def test_what_a_failed_program_printed_comes_back_from_the_workers_short_and_whole_enough(pool: Pool) -> None:
    flood = Program("import sys\nsys.stdout.buffer.write(bytes(range(256)) * (1 << 15))\nsys.exit(3)")
    first, again = [await pool.judge(SUM, flood) for _ in range(2)]
    assert first.cases == again.cases, "kept by the pool"
    (failed,) = first.cases
    assert failed.exit_code == 3
    assert failed.got is not None
    assert (failed.got.size, failed.got.whole) == (256 << 15, False)
    assert len(json.dumps(first.to_json())) < 10_000
    assert all(case.got is None for case in (await pool.judge(SUM, RIGHT)).cases)


@pooled(1)
async def test_a_limit_that_the_machine_cannot_give_is_told_once(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandbox.pool.pool.memory_bytes", lambda: 400 << 20)
    with pytest.warns(RuntimeWarning, match="a program of up to 512 MiB: more than the 400 MiB"):
        await pool.judge(SUM, RIGHT)
    assert (await pool.judge(SUM, WRONG)).verdict is Verdict.WA
