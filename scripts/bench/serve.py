"""The server `sandbox serve` beside the pool: requests a second, p50 and p99.

At 1, 8, 64 and 256 clients, with trivial programs that all differ. Both take turns, and clients and server share the
machine's cores. Bar: at 64 clients at least 0.8 of the pool's requests a second.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final

from _shared import ROOT, argument_parser

from sandbox import Case, Client, Judgement, Pool, Problem, Program

CLIENTS: Final = (1, 8, 64, 256)
BAR: Final = 0.8
SUM: Final = Problem("sum", "stdio", (Case("3 4\n", "7"),))
Judge = Callable[[Problem, Program], Awaitable[Judgement]]
_number = itertools.count()


def trivial() -> tuple[Program, str]:
    """A program that was not judged before, and its verdict."""
    number = next(_number)
    right = number % 3 != 0
    return Program(f"print(sum(map(int, input().split())) + {int(not right)})  # {number}"), "AC" if right else "WA"


def percentile(times: list[float], share: float) -> float:
    """Milliseconds."""
    return 1000 * sorted(times)[min(len(times) - 1, int(share * len(times)))]


async def pace(judge: Judge, clients: int, seconds: float) -> dict[str, float]:
    """Clients that ask again as soon as they have an answer."""
    times = list[float]()
    end = time.monotonic() + seconds

    async def ask() -> None:
        while (start := time.monotonic()) < end:
            program, verdict = trivial()
            assert (await judge(SUM, program)).verdict == verdict
            times.append(time.monotonic() - start)

    start = time.monotonic()
    await asyncio.gather(*(ask() for _ in range(clients)))
    per_s = len(times) / (time.monotonic() - start)
    return {"per_s": per_s, "p50": percentile(times, 0.5), "p99": percentile(times, 0.99)}


@contextmanager
def started(*command: str) -> Iterator[str]:
    """The URL of a server in a process of its own."""
    process = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert process.stdout is not None
        url = next(word for word in process.stdout.readline().split() if word.startswith("http://"))
        yield url
    finally:
        process.terminate()
        process.wait(30)


async def compare(rounds: int, seconds: float) -> int:
    """Pace of each way in turn, medians over the rounds; returns the exit code."""
    found = dict[tuple[int, str], list[dict[str, float]]]()
    with started("-m", "sandbox", "serve", "--port", "0") as url:
        async with Pool() as pool, Client(url) as client:
            ways: dict[str, Judge] = {"pool": pool.judge, "http": client.judge}
            for judge in ways.values():
                await pace(judge, 2, 1.0)
            for number in range(rounds):
                for clients in CLIENTS:
                    for name in ways if number % 2 == 0 else reversed(ways):
                        found.setdefault((clients, name), []).append(await pace(ways[name], clients, seconds))
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, medians of {rounds}")
    print(f"{'clients':<9}{'':<8}{'per s':>8}{'p50 ms':>9}{'p99 ms':>9}{'of pool':>9}")
    shares = dict[tuple[int, str], float]()
    for (clients, name), rows in found.items():
        base = found[clients, "pool"]
        shares[clients, name] = statistics.median(a["per_s"] / b["per_s"] for a, b in zip(rows, base, strict=True))
        medians = {column: statistics.median(row[column] for row in rows) for column in ("per_s", "p50", "p99")}
        figures = f"{medians['per_s']:>8.1f}{medians['p50']:>9.1f}{medians['p99']:>9.1f}"
        print(f"{clients:<9}{name:<8}{figures}{shares[clients, name]:>9.2f}")
    return int(shares[64, "http"] < BAR)


def main() -> int:
    parser = argument_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="default %(default)s")
    parser.add_argument("--seconds", type=float, default=4.0, help="of a figure (default %(default)s)")
    options = parser.parse_args()
    return asyncio.run(compare(options.rounds, options.seconds))


if __name__ == "__main__":
    sys.exit(main())
