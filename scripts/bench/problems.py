"""What large problems cost the process that asks: CPU per program, lag of its loop, memory.

Programs of distinct source for few distinct problems, judged by a Pool. `--beside` measures another checkout of this
repository with the same script in the same minutes. The first program of each problem is counted apart, as "first".
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
from _shared import ROOT, argument_parser

MIB = 1 << 20


def main() -> None:
    parser = argument_parser(__doc__)
    for name, default in (("tests", 15), ("problems", 4), ("programs", 96), ("in-flight", 48)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--mib", type=float, default=1.0, help="of each test's input")
    parser.add_argument("--beside", type=Path, help="another checkout")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.json:
        print(json.dumps(asyncio.run(measure(options))))
        return
    for place in [ROOT, *([options.beside.resolve()] if options.beside else [])]:
        argv = [sys.executable, __file__, *sys.argv[1:], "--json"]
        done = subprocess.run(argv, env={**os.environ, "PYTHONPATH": str(place)}, stdout=subprocess.PIPE, check=True)
        print(place)
        for name, value in json.loads(done.stdout).items():
            print(f"  {name:42} {value:10.2f}")


async def measure(options: argparse.Namespace) -> dict[str, float]:
    """Milliseconds and MiB by what they are of."""
    import sandbox

    problems = make(options)
    lags: list[float] = []
    found: dict[str, float] = {}
    async with sandbox.Pool() as pool:
        small = sandbox.Problem("small", "stdio", (sandbox.Case("1\n", "1"),))
        await pool.judge(small, sandbox.Program("print(input())"))
        before = resident_mib()
        watching = asyncio.create_task(watch(lags))

        async def judge(number: int) -> None:
            program = sandbox.Program(f"print(input())  # {number}")
            done = await pool.judge(problems[number % len(problems)], program)
            if done.verdict != "AC":
                raise SystemExit(f"the bench's own program was judged {done.verdict}: {done.cases}")

        start = time.process_time()
        for number in range(options.problems):
            await judge(number)
        found["driver CPU, first of a problem, ms"] = (time.process_time() - start) * 1e3 / options.problems
        places = asyncio.Semaphore(options.in_flight)
        top = [resident_mib()]

        async def one(number: int) -> None:
            async with places:
                await judge(number)
                top.append(resident_mib())

        numbers = range(options.problems, options.problems + options.programs)
        start, wall = time.process_time(), time.monotonic()
        asking = asyncio.gather(*(one(number) for number in numbers))
        await asyncio.sleep(0.5)
        below = sum(map(shared_out_mib, psutil.Process().children(recursive=True)))
        await asking
        found["driver CPU, per program, ms"] = (time.process_time() - start) * 1e3 / options.programs
        found["wall, per program, ms"] = (time.monotonic() - wall) * 1e3 / options.programs
        watching.cancel()
        lags.sort()
        found["loop lag, p99, ms"] = lags[int(len(lags) * 0.99)] * 1e3
        found["loop lag, largest, ms"] = lags[-1] * 1e3
        found["driver memory above the problems, MiB"] = max(top) - before
        found["memory of all its processes, MiB"] = below
        found["text of all problems, MiB"] = options.problems * options.tests * options.mib
    return found


def make(options: argparse.Namespace) -> list[Any]:
    import sandbox

    chance = random.Random(1)
    problems = []
    for number in range(options.problems):
        line = " ".join(str(chance.randrange(10**6)) for _ in range(1000)) + "\n"
        text = line * int(options.mib * MIB / len(line))
        cases = tuple(sandbox.Case(f"{case}\n{text}", str(case)) for case in range(options.tests))
        problems.append(sandbox.Problem(f"p{number}", "stdio", cases))
    return problems


async def watch(lags: list[float]) -> None:
    while True:
        asked = time.perf_counter()
        await asyncio.sleep(0.002)
        lags.append(max(0.0, time.perf_counter() - asked - 0.002))


def resident_mib() -> float:
    return psutil.Process().memory_info().rss / MIB


def shared_out_mib(process: psutil.Process) -> float:
    """Proportional share (PSS), so that what two processes map is counted once; 0 for one that has ended."""
    try:
        return process.memory_full_info().pss / MIB
    except psutil.Error:
        return 0.0


if __name__ == "__main__":
    main()
