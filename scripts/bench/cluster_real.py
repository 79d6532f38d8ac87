"""A Ray cluster of one to three machines made of namespaces beside a local pool (as root).

What a judgement costs the driver, and how soon a lost node is made up for. All machines share the cores of this one:
rates over more nodes tell what the driver can do, not what nodes would add. ``cluster_weights`` sends weights.
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _shared import ROOT, argument_parser

from sandbox.core.nouns import Case, Judgement, Program, Verdict
from sandbox.core.problem import Problem

if TYPE_CHECKING:
    from machines import Machines

    from overlap.cluster.pool import ClusterPool
    from sandbox.pool.pool import Pool

PROBLEM = Problem("empty", "stdio", (Case("1", "1"),))
EMPTY_S, SLOTS = 0.01, 64
LONG_S, STEADY_S, SEEN_S, TICK_S = 1.0, 10.0, 45.0, 0.5
"""Jobs of so long keep every slot busy while nodes go and come; a rate counts once it was steady for so long."""


class EmptyPool:
    """Judges nothing: says AC after ``seconds``."""

    def __init__(self, workers: int, seconds: float = EMPTY_S) -> None:
        self.workers, self._seconds = SLOTS, seconds

    async def __aenter__(self) -> EmptyPool:
        return self

    async def __aexit__(self, *exc_info: Any) -> None:
        pass

    async def judge(self, problem: Problem, program: Program, *, turn: int = 0) -> Judgement:
        await asyncio.sleep(self._seconds)
        return Judgement(problem.id, Verdict.AC, (), 1, 1, False, "A", "python", "", "", 0.0, self._seconds)

    def pids(self) -> tuple[int, ...]:
        return ()


class LongPool(EmptyPool):
    """The same, for as long as a program takes, and ``SLOTS`` at a time."""

    def __init__(self, workers: int) -> None:
        super().__init__(workers, LONG_S)
        self._slots = asyncio.Semaphore(SLOTS)

    async def judge(self, problem: Problem, program: Program, *, turn: int = 0) -> Judgement:
        async with self._slots:
            return await super().judge(problem, program, turn=turn)


@asynccontextmanager
async def over_nodes(address: str, nodes: int, judge: Any) -> AsyncIterator[ClusterPool]:
    """A pool once so many nodes are there."""
    from overlap.cluster.members import RayMembers
    from overlap.cluster.pool import ClusterPool
    from overlap.cluster.ray_cluster import RayCluster
    from sandbox.pool.pool import Pool

    if judge is not None:  # an agent finds it by the name of this module
        judge = getattr(importlib.import_module("cluster_real"), judge.__name__)
    members = RayMembers(RayCluster(address), judge or partial(Pool, judge_once=False))
    async with ClusterPool(members, tell=lambda line: None, judge_once=False) as pool:
        while len(pool.nodes()) < nodes:  # noqa: ASYNC110 - until all are there
            await asyncio.sleep(0.1)
        yield pool


async def rate(pool: ClusterPool | Pool, count: int, at_once: int) -> dict[str, float]:
    """Judgements a second of an empty program, each another one, and the CPU that one takes of this process, us."""
    numbers = iter(range(count))

    async def ask() -> None:
        for number in numbers:
            await pool.judge(PROBLEM, Program(f"print(input())  # {number}"), turn=number)

    began, spent = time.monotonic(), time.process_time()
    await asyncio.gather(*(ask() for _ in range(at_once)))
    return {"per_s": count / (time.monotonic() - began), "us": (time.process_time() - spent) * 1e6 / count}


async def rates(address: str, nodes: int, count: int, *, empty: bool) -> dict[str, float]:
    """Of a pool on this machine alone where there is no ``address``."""
    if not address:
        from sandbox.pool.pool import Pool

        async with Pool(judge_once=False) as local:
            return await rate(local, count, 64)
    async with over_nodes(address, nodes, EmptyPool if empty else None) as pool:
        return await rate(pool, count, 4096 if empty else 256)


async def loss(address: str, nodes: int) -> None:
    """Keep all slots of ``nodes`` busy; print how many were judged in each tick, with the time, until told to end."""
    ticks, numbers = Counter[int](), itertools.count()

    async def ask(pool: ClusterPool) -> None:
        for number in numbers:
            await pool.judge(PROBLEM, Program(f"print(input())  # {number}"), turn=number)
            ticks[int(time.monotonic() / TICK_S)] += 1

    async with over_nodes(address, nodes, LongPool) as pool:
        asking = [asyncio.create_task(ask(pool)) for _ in range(SLOTS * (nodes + 1))]
        while os.getppid() != 1:
            await asyncio.sleep(TICK_S)
            tick = int(time.monotonic() / TICK_S) - 1
            print(json.dumps({"at": tick * TICK_S, "judged": ticks.pop(tick, 0)}), flush=True)
        for task in asking:
            task.cancel()


def over_machines(count: int, empty: int) -> int:
    """Print the tables. Says why where there can be no machines."""
    from machines import Machines, why_not

    if why := why_not():
        print(f"not over real nodes: {why}")
        return 0

    def drive(machines: Machines, *given: str) -> dict[str, float]:
        said = machines.head.run(
            [sys.executable, __file__, *given], 300.0, PYTHONPATH=f"{ROOT}{os.pathsep}{Path(__file__).parent}"
        )
        found: dict[str, float] = json.loads(said.strip().splitlines()[-1])
        return found

    def row(nodes: int, judge: str, done: dict[str, float]) -> None:
        print(f"{nodes:6d} {judge:>10s} {done['per_s']:13.0f} {done['us']:8.0f}", flush=True)

    os.environ["PYTHONPATH"] = f"{ROOT}{os.pathsep}{Path(__file__).parent}"  # agents on the nodes find the doubles
    with Machines(1) as machines:
        print(f"{'nodes':>6s} {'judged by':>10s} {'judgements/s':>13s} {'us each':>8s}")
        row(1, "local pool", drive(machines, "rate", "--count", str(count)))
        for nodes in (1, 2, 3):
            if nodes > 1:
                machines.add()
            given = ["rate", "--address", machines.address, "--nodes", str(nodes)]
            row(nodes, "sandboxes", drive(machines, *given, "--count", str(count)))
            row(nodes, "nobody", drive(machines, *given, "--count", str(empty), "--empty"))
        lose_a_node(machines)
    return 0


def lose_a_node(machines: Machines) -> None:
    """Print how soon the others work as fast as they can again, and a new one with them."""
    command = [sys.executable, __file__, "loss", "--address", machines.address, "--nodes", "3"]
    driver = machines.head.start(command, PYTHONPATH=f"{ROOT}{os.pathsep}{Path(__file__).parent}")
    try:
        await_rate(driver, 3, 0.0)
        killed = time.monotonic()
        machines.all[-1].kill()
        again = await_rate(driver, 2, killed)
        print(f"a node of 3 killed: the other two at their full rate {again - killed:.1f} s later", flush=True)
        machines.add()
        joined = time.monotonic()
        again = await_rate(driver, 3, joined)
        print(f"a node joined: all three at their full rate {again - joined:.1f} s after it was up", flush=True)
    finally:
        for pid in machines.head.find("cluster_real.py", "loss"):  # it has the pipe, and outlives who entered there
            os.kill(pid, signal.SIGKILL)
        driver.kill()
        driver.communicate(timeout=30)


def await_rate(driver: subprocess.Popen[str], nodes: int, since: float) -> float:
    """When it began that so many nodes judged at least 0.9 of what their slots can, and went on for ``STEADY_S``.

    Raises RuntimeError where that does not come.
    """
    assert driver.stdout is not None
    seen: list[tuple[float, int]] = []
    until = time.monotonic() + SEEN_S + 3 * STEADY_S
    for line in driver.stdout:
        if time.monotonic() > until:
            break
        if not line.startswith("{"):
            continue
        tick = json.loads(line)
        if tick["at"] < since:
            continue
        seen.append((tick["at"], tick["judged"]))
        window = [judged for at, judged in seen if at > tick["at"] - STEADY_S]
        full = 0.9 * nodes * SLOTS / LONG_S * STEADY_S
        if len(window) >= STEADY_S / TICK_S and full <= sum(window) <= full * 1.2:
            return tick["at"] - STEADY_S + TICK_S
    raise RuntimeError(f"{nodes} nodes did not come to their full rate: {seen[-40:]}")


def main() -> int:
    parser = argument_parser(__doc__)
    parser.add_argument("what", nargs="?", choices=["rate", "loss"], help="a part of it, on a machine")
    parser.add_argument("--address", default="", help="of the cluster, for a part")
    parser.add_argument("--nodes", type=int, default=1, help="of the cluster, for a part (1)")
    parser.add_argument("--count", type=int, default=600, help="programs for the sandboxes of a cluster (600)")
    parser.add_argument("--empty-count", type=int, default=40_000, help="programs that nobody judges (40000)")
    parser.add_argument("--empty", action="store_true", help="nobody judges, for a part")
    args = parser.parse_args()
    match args.what:
        case "rate":
            print(json.dumps(asyncio.run(rates(args.address, args.nodes, args.count, empty=args.empty))))
        case "loss":
            asyncio.run(loss(args.address, args.nodes))
        case _:
            return over_machines(args.count, args.empty_count)
    return 0


if __name__ == "__main__":
    sys.exit(main())
