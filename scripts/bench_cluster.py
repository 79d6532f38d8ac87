"""The driver of a cluster: what a judgement costs it with a thousand nodes that fail, and over real ones."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from overlap.clock import now, run_virtual
from overlap.cluster import ClusterPool, FakeMembers, FakeNode, Parcel
from sandbox.core import Case, Judgement, Problem, Program, Verdict

if TYPE_CHECKING:
    from sandbox.pool import Pool

ROOT = Path(__file__).resolve().parents[1]
WORKERS, MEAN_S, ROUNDS = 64, 30.0, 3
BAR_US = 100.0
EMPTY_S = 0.01


class Double(FakeNode):
    """A fake node that knows the CPU seconds that all of its kind have taken: they are no part of the driver."""

    spent_s = 0.0

    def _accept(self, parcel: Parcel) -> None:
        began = time.perf_counter()
        super()._accept(parcel)
        Double.spent_s += time.perf_counter() - began

    def _due(self) -> None:
        began = time.perf_counter()
        super()._due()
        Double.spent_s += time.perf_counter() - began


class Simulated(NamedTuple):
    """What a simulation took: CPU in microseconds for each judgement, the fake nodes' part of it, and MiB at most."""

    in_flight: int
    judged: int
    lost_nodes: int
    us: float
    fakes_us: float
    mib: float
    virtual_s: float


async def simulated(nodes: int, in_flight: int, seed: int) -> tuple[int, int, float]:
    """Judge ``ROUNDS`` programs for each in flight, while each second one node in 500 dies or freezes, and others come.
    The number judged, the nodes lost, and the virtual seconds. Raises RuntimeError when one is lost.
    """
    rng, lost = random.Random(seed), 0
    problems = [Problem(f"p{i}", "stdio", (Case("1", "1"),)) for i in range(max(1, in_flight // 64))]

    def node(number: int) -> Double:
        return Double(f"n{number}", WORKERS, lambda job: rng.uniform(0.0, 2 * MEAN_S))

    there = [node(number) for number in range(nodes)]
    members = FakeMembers(there)
    async with ClusterPool(members, tell=lambda line: None) as pool:

        async def trajectory(number: int) -> int:
            judged = 0
            for turn in range(ROUNDS):
                program = Program(f"{number} {turn}")
                done = await pool.judge(problems[number % len(problems)], program, turn=turn)
                judged += done.compile_log == program.source  # where a fake node puts it
            return judged

        async def fail() -> None:
            nonlocal lost
            while True:
                await asyncio.sleep(500.0 / nodes)
                which = rng.randrange(len(there))
                if rng.random() < 0.5:
                    there[which].die()
                    lost += 1
                    there[which] = node(nodes + lost)
                    members.add(there[which])
                else:
                    there[which].freeze()
                    asyncio.get_running_loop().call_later(rng.uniform(1.0, 30.0), there[which].thaw)

        failing = asyncio.create_task(fail())
        judged = sum(await asyncio.gather(*(trajectory(number) for number in range(in_flight))))
        failing.cancel()
        took = now()
    if judged != ROUNDS * in_flight:
        raise RuntimeError(f"{judged} of {ROUNDS * in_flight} were judged")
    return judged, lost, took


def simulate(nodes: int, in_flight: int, seed: int) -> Simulated:
    """As ``simulated``, and what it took this process."""
    began = time.process_time()
    judged, lost, took = run_virtual(simulated(nodes, in_flight, seed))
    spent_s = time.process_time() - began
    most_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    us = 1e6 / judged
    return Simulated(in_flight, judged, lost, spent_s * us, Double.spent_s * us, most_mib, took)


def simulate_all(nodes: int, sizes: list[int], seed: int) -> int:
    """Print a table, each size in a process of its own. 1 where the bar is missed."""
    print(f"{nodes} nodes of {WORKERS} workers, one fails every {500 / nodes:g} s; jobs of up to {2 * MEAN_S:g} s")
    print(
        f"{'in flight':>10s} {'judged':>8s} {'died':>5s} {'us each':>8s} {'of it fakes':>12s} "
        f"{'MiB':>6s} {'KiB each':>9s}"
    )
    first, worst = None, 0.0
    for size in sizes:
        command = [sys.executable, __file__, "--one", str(size), "--nodes", str(nodes), "--seed", str(seed)]
        done = Simulated(*json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout))
        first = first or done
        more = (done.mib - first.mib) * 1024 / (done.in_flight - first.in_flight) if done is not first else 0.0
        worst = max(worst, done.us - done.fakes_us)
        figures = f"{done.in_flight:10d} {done.judged:8d} {done.lost_nodes:5d} {done.us:8.0f} {done.fakes_us:12.0f}"
        print(f"{figures} {done.mib:6.0f} {more:9.1f}", flush=True)
    print(f"the driver: {worst:.0f} us a judgement at most; the bar is {BAR_US:g}")
    return int(worst > BAR_US)


class EmptyPool:
    """Judges nothing: says AC after the time of an empty program."""

    def __init__(self, workers: int) -> None:
        self.workers = WORKERS

    async def __aenter__(self) -> EmptyPool:
        return self

    async def __aexit__(self, *exc_info: Any) -> None:
        pass

    async def judge(self, problem: Problem, program: Program, *, turn: int = 0) -> Judgement:
        await asyncio.sleep(EMPTY_S)
        return Judgement(problem.id, Verdict.AC, (), 1, 1, False, "A", "python", "", "", 0.0, EMPTY_S)

    def pids(self) -> tuple[int, ...]:
        return ()


async def rate(pool: ClusterPool | Pool, count: int, at_once: int) -> dict[str, float]:
    """Judgements a second of an empty program, each another one, and the CPU that one takes of this process, us."""
    problem, numbers = Problem("empty", "stdio", (Case("1", "1"),)), iter(range(count))

    async def ask() -> None:
        for number in numbers:
            await pool.judge(problem, Program(f"print(input())  # {number}"), turn=number)

    began, spent = time.monotonic(), time.process_time()
    await asyncio.gather(*(ask() for _ in range(at_once)))
    return {"per_s": count / (time.monotonic() - began), "us": (time.process_time() - spent) * 1e6 / count}


async def drive(args: argparse.Namespace) -> dict[str, float]:
    """On a machine of the cluster: the rate over its nodes, or of a pool on this machine alone."""
    if args.drive == "local":
        from sandbox.pool import Pool

        async with Pool(judge_once=False) as local:
            return await rate(local, args.count, 64)
    from overlap.cluster import RayCluster, RayMembers

    members = RayMembers(RayCluster(args.drive), judge_once=False, make_pool=EmptyPool if args.empty else None)
    async with ClusterPool(members, tell=lambda line: None, judge_once=False) as pool:
        while len(pool.nodes()) < args.nodes:  # noqa: ASYNC110 - until all are there
            await asyncio.sleep(0.1)
        return await rate(pool, args.count, 4096 if args.empty else 256)


def over_machines(count: int, empty: int) -> int:
    """Print a table over 1, 2, 3 machines of namespaces. Raises RuntimeError where there can be none."""
    sys.path.append(str(ROOT / "tests" / "support"))
    from machines import Machines, why_not

    if why := why_not():
        print(f"not over real nodes: {why}")
        return 0
    print(f"{'nodes':>6s} {'judged by':>10s} {'judgements/s':>13s} {'us each':>8s}")

    def row(machines: Machines, nodes: int, judge: str, *given: str) -> None:
        command = [sys.executable, __file__, "--nodes", str(nodes), *given]
        said = machines.head.run(command, 300.0, PYTHONPATH=str(ROOT))
        done = json.loads(said.strip().splitlines()[-1])
        print(f"{nodes:6d} {judge:>10s} {done['per_s']:13.0f} {done['us']:8.0f}", flush=True)

    with Machines(1) as machines:
        row(machines, 1, "local pool", "--drive", "local", "--count", str(count))
        for nodes in (1, 2, 3):
            if nodes > 1:
                machines.add()
            row(machines, nodes, "sandboxes", "--drive", machines.address, "--count", str(count))
            row(machines, nodes, "nobody", "--drive", machines.address, "--count", str(empty), "--empty")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--real", action="store_true", help="over a Ray cluster of namespaces on this machine, as root")
    parser.add_argument("--nodes", type=int, default=1000, help="simulated nodes (1000)")
    parser.add_argument("--in-flight", type=int, nargs="+", default=[25_000, 50_000, 100_000], help="trajectories")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=600, help="programs for the sandboxes of real nodes (600)")
    parser.add_argument("--empty-count", type=int, default=40_000, help="programs that nobody judges (40000)")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--drive", help=argparse.SUPPRESS)
    parser.add_argument("--empty", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(simulate(args.nodes, args.one, args.seed)))
        return 0
    if args.drive:
        print(json.dumps(asyncio.run(drive(args))))
        return 0
    return (
        over_machines(args.count, args.empty_count)
        if args.real
        else simulate_all(args.nodes, args.in_flight, args.seed)
    )


if __name__ == "__main__":
    sys.exit(main())
