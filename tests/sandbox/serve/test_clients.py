"""Real, unmodified clients of other projects against the server: the rewards that the local pool gives."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from typing import Any

import pytest
from places import SHARED
from pooling import members, until
from serving import Served, served
from wired import CPU_S, Labelled, labelled, local_shares, needs, told

from sandbox import Pool
from sandbox.errors import WorkerDied

pytestmark = pytest.mark.timeout(900)
has_programs = pytest.mark.skipif(not SHARED.is_dir(), reason="../shared/data is not here")
SUM = "print(sum(map(int, input().split())))"
SUMS = {"inputs": ["3 4\n", "1 1\n"], "outputs": ["7\n", "2\n"]}


def fenced(code: str) -> str:
    return f"```python\n{code}\n```"


def verl_jobs(rows: list[Labelled]) -> list[dict[str, Any]]:
    return [{"answer": row.answer, "truth": row.truth} for row in rows]


@pytest.mark.promise("serve-clients")
@needs("verl")
@pytest.mark.shared
@has_programs
@served(2, judge_once=True)
async def test_verl_rewards_labelled_programs_as_the_local_pool_does(s: Served) -> None:
    rows = labelled(24)
    found = await told("verl", s.url, verl_jobs(rows), timeout=CPU_S, max_concurrent=4)
    shares = await local_shares(s.service.pool, rows)
    wrong = [
        (row.program, score, share)
        for row, (score, _), share in zip(rows, found, shares, strict=True)
        if score != share
    ]
    assert wrong == []
    assert {0.0, 1.0} <= set(shares)


@needs("verl")
@served(2)
async def test_verl_asks_again_where_we_are_at_fault_and_never_sees_a_dead_worker(s: Served, monkeypatch) -> None:
    run, failed = Pool.run, []

    async def fails_first(self: Pool, *args: Any, **more: Any) -> Any:
        if len(failed) < 2:
            failed.append(args)
            raise WorkerDied("a worker died")
        return await run(self, *args, **more)

    monkeypatch.setattr(Pool, "run", fails_first)
    slow = f"import time\ntime.sleep(1)\n{SUM}"
    jobs = [{"answer": fenced(code), "truth": SUMS} for code in (SUM, slow, "print(7)", "exit(1)")]
    asking = asyncio.create_task(told("verl", s.url, jobs, timeout=CPU_S, max_concurrent=4))
    await until(lambda: bool(asking.done() or (len(failed) == 2 and s.service.pool.stats().running)))
    for process in members(s.service.pool, "worker"):
        process.kill()
    (score, said), (slow_score, _), half, none = await asking
    assert (score, slow_score) == (1.0, 1.0)
    assert said == ["success", "success"]
    assert half == [0.5, ["success", "wrong_answer"]]
    assert none == [0.0, ["runtime_error", "runtime_error"]]
    assert len(failed) == 2
    assert s.service.pool.stats().infrastructure_failures >= 1


@pytest.mark.promise("serve-clients")
@needs("verl")
@served(2)
async def test_what_verl_calls_each_end(s: Served) -> None:
    long = {"inputs": [""], "outputs": ["0123456789" * 40_000]}
    raw = {"inputs": [""], "outputs": ["x"]}
    jobs = [
        {"answer": fenced("print('0123456789' * 40_000)"), "truth": long},
        {"answer": fenced("import sys; sys.stdout.buffer.write(b'\\xff')"), "truth": raw},
        {"answer": fenced("x = [b'x' * (1 << 20) for _ in range(4000)]\nprint(len(x))"), "truth": raw},
        {"answer": fenced("def f(:"), "truth": raw},
        # verl's own hole: without an expected output, a function that raises printed just that.
        {"answer": fenced("def f(x): raise ValueError"), "truth": {"inputs": ["1"], "outputs": [""], "fn_name": "f"}},
    ]
    found = await told("verl", s.url, jobs, timeout=CPU_S, max_concurrent=4)
    assert found == [
        [1.0, ["success"]],
        [0.0, ["wrong_answer"]],
        [0.0, ["runtime_error"]],
        [0.0, ["runtime_error"]],
        [1.0, ["success"]],
    ]


@pytest.mark.promise("serve-clients")
@needs("sandbox-fusion")
@served(2)
async def test_the_package_sandbox_fusion_runs_programs_and_notebooks(s: Served) -> None:
    files = {"in.txt": b64encode(b"hi").decode()}
    run = {"code": "print(open('in.txt').read(), input())\nopen('out', 'w').write('o')", "language": "python"}
    jobs = [
        ["run_code", {**run, "stdin": "x", "files": files, "fetch_files": ["out", "none"]}],
        ["run_code", {"code": "while True: pass", "language": "python", "run_timeout": 1}],
        ["run_jupyter", {"cells": ["a = 1", "a + 1", "print(a)", "1 / 0"]}],
    ]
    ran, endless, notebook = await told("sandbox-fusion", s.url, jobs)
    assert (ran["status"], ran["run_result"]["stdout"]) == ("Success", "hi x\n")
    assert ran["files"] == {"out": b64encode(b"o").decode()}
    assert (endless["status"], endless["run_result"]["status"]) == ("Failed", "TimeLimitExceeded")
    assert notebook["status"] == "Success"
    assert [cell["display"] for cell in notebook["cells"]] == [[], [{"text/plain": "2"}], [], []]
    assert notebook["cells"][3]["error"][0]["ename"] == "ZeroDivisionError"


@needs("sandbox-fusion")
@pytest.mark.shared
@has_programs
@served(2, judge_once=True)
async def test_the_package_sandbox_fusion_accepts_what_the_local_pool_accepts(s: Served) -> None:
    rows = labelled(24)
    found = await told(
        "sandbox-fusion", s.url, [["submit", _submission(row)] for row in rows if row.problem.kind != "function"]
    )
    rows = [row for row in rows if row.problem.kind != "function"]
    shares = await local_shares(s.service.pool, rows)
    assert [each.get("accepted", each) for each in found] == [share == 1.0 for share in shares]


def _submission(row: Labelled) -> dict[str, Any]:
    kind, data = "MBPPDataset", {"test": [case.input for case in row.problem.cases], "labels": {}}
    if row.problem.kind == "stdio":
        tests = [{"input": {"stdin": case.input}, "output": {"stdout": case.expected}} for case in row.problem.cases]
        kind, data = "CommonOJDataset", {"test": tests}
    how = {
        "dataset_type": kind,
        "language": "python",
        "run_timeout": CPU_S,
        "provided_data": data,
        "extra": {"compare": "lines"},
    }
    return {"dataset": "x", "id": 1, "completion": row.answer, "config": how}
