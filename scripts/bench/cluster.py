"""CPU time of a cluster's driver per judgement, with a thousand simulated nodes that fail.

Fake nodes on a virtual clock. Exit code 1 where the driver takes more than its bar.
"""

from __future__ import annotations

import asyncio
import random
import resource
import sys
import time

from _shared import argument_parser
from fake_nodes import FakeMembers, FakeNode
from virtual_clock import run_virtual

from overlap.cluster.nodes import NodeParcel
from overlap.cluster.pool import ClusterPool
from overlap.core.clock import now
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


def python_ns() -> float:
    """CPU nanoseconds of an addition in a loop: what a judgement costs on another machine is compared with it."""
    steps, began, total = 2_000_000, time.process_time(), 0
    for number in range(steps):
        total += number
    return (time.process_time() - began) / steps * 1e9


def main() -> int:
    parser = argument_parser(__doc__)
    parser.add_argument("--nodes", type=int, default=1000, help="simulated nodes (1000)")
    parser.add_argument("--in-flight", type=int, default=100_000, help="trajectories (100000)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    first_ns = python_ns()
    began, began_s = time.process_time(), time.perf_counter()
    with gc_frozen():  # as in a run
        judged, lost, took = run_virtual(simulated(args.nodes, args.in_flight, args.seed))
    spent_s = time.process_time() - began
    # It never waits: of its CPU time the fake nodes had the same share as of the time by the clock.
    fakes_s = Double.spent_s * spent_s / (time.perf_counter() - began_s)
    most_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    driver_us, fakes_us = ((spent_s - fakes_s) / judged * 1e6, fakes_s / judged * 1e6)
    addition_us = (first_ns + python_ns()) / 2000
    print(f"{args.nodes} nodes of {WORKERS} workers, one fails every {500 / args.nodes:g} s, {lost} died")
    print(f"{judged} judged in {took:.0f} s of the virtual clock, {args.in_flight} at once; {most_mib:.0f} MiB")
    print(f"the driver: {driver_us:.1f} us a judgement (the fake nodes {fakes_us:.1f}), "
          f"{driver_us / addition_us:.0f} additions of {addition_us * 1000:.0f} ns; the bar is {BAR:g}")  # fmt: skip
    return int(driver_us > BAR * addition_us)


if __name__ == "__main__":
    sys.exit(main())
