"""CPU time of a cluster's driver per judgement, with a thousand simulated nodes that fail.

100,000 trajectories in flight, fake nodes, a virtual clock. Exit code 1 where the driver takes more than its bar.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import subprocess
import sys
import time
from typing import NamedTuple

from _shared import argument_parser
from fake_nodes import FakeMembers, FakeNode

from overlap.clock import now, run_virtual
from overlap.cluster.nodes import NodeParcel
from overlap.cluster.pool import ClusterPool
from overlap.run.open_close import gc_frozen
from sandbox.core.nouns import Case, Program
from sandbox.core.problem import Problem

WORKERS, MEAN_S, ROUNDS = 64, 30.0, 3
BAR = 2000.0
"""Times that a judgement may take the driver as long as an addition takes in a loop."""


class Double(FakeNode):
    """A fake node that knows the seconds that all of its kind have taken: they are no part of the driver."""

    spent_s = 0.0

    def _accept(self, parcel: NodeParcel) -> None:
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
    """As ``simulated``, and what it took this process. It never waits: of its CPU time the fake nodes had
    the same share as of the time by the clock, whatever else this machine does.
    """
    began, began_s = time.process_time(), time.perf_counter()
    with gc_frozen():  # as in a run
        judged, lost, took = run_virtual(simulated(nodes, in_flight, seed))
    spent_s = time.process_time() - began
    fakes_s = Double.spent_s * spent_s / (time.perf_counter() - began_s)
    most_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    us = 1e6 / judged
    return Simulated(in_flight, judged, lost, spent_s * us, fakes_s * us, most_mib, took)


def python_ns() -> float:
    """CPU nanoseconds of an addition in a loop: what a judgement costs on another machine is compared with it."""
    steps, began, total = 2_000_000, time.process_time(), 0
    for number in range(steps):
        total += number
    return (time.process_time() - began) / steps * 1e9


def simulate_all(nodes: int, sizes: list[int], seed: int) -> int:
    """Print a table, each size in a process of its own. 1 where the bar is missed."""
    print(f"{nodes} nodes of {WORKERS} workers, one fails every {500 / nodes:g} s; jobs of up to {2 * MEAN_S:g} s")
    print(
        f"{'in flight':>10s} {'judged':>8s} {'died':>5s} {'us each':>8s} {'of it fakes':>12s} "
        f"{'MiB':>6s} {'KiB each':>9s}"
    )
    first, worst = None, 0.0
    speeds = [python_ns()]
    for size in sizes:
        command = [sys.executable, __file__, "--one", str(size), "--nodes", str(nodes), "--seed", str(seed)]
        done = Simulated(*json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout))
        first = first or done
        more = (done.mib - first.mib) * 1024 / (done.in_flight - first.in_flight) if done is not first else 0.0
        worst = max(worst, done.us - done.fakes_us)
        figures = f"{done.in_flight:10d} {done.judged:8d} {done.lost_nodes:5d} {done.us:8.0f} {done.fakes_us:12.0f}"
        print(f"{figures} {done.mib:6.0f} {more:9.1f}", flush=True)
        speeds.append(python_ns())
    addition_us = sum(speeds) / len(speeds) / 1000
    print(f"an addition in a loop takes this Python {min(speeds):.1f} to {max(speeds):.1f} ns")
    print(f"the driver: {worst:.1f} us a judgement at most, {worst / addition_us:.0f} additions; the bar is {BAR:g}")
    return int(worst > BAR * addition_us)


def main() -> int:
    parser = argument_parser(__doc__)
    parser.add_argument("--nodes", type=int, default=1000, help="simulated nodes (1000)")
    parser.add_argument("--in-flight", type=int, nargs="+", default=[25_000, 50_000, 100_000], help="trajectories")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(simulate(args.nodes, args.one, args.seed)))
        return 0
    return simulate_all(args.nodes, args.in_flight, args.seed)


if __name__ == "__main__":
    sys.exit(main())
