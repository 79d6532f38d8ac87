"""The server `sandbox serve` beside the pool, and beside a server that starts a process per request.

    pace        requests/s, p50 and p99 at 1, 8, 64 and 256 clients, trivial programs that all differ, in turns
    rate        the same latencies where requests come at half the pace of the pool, as from a trainer that has time
    --load S    256 clients for S seconds, a worker killed every 10: answers lost, wrong, and the server's memory
    --labelled  programs of ../shared/data through HTTP: verdicts beside those of the local pool, and the labels

Bars: at 64 clients at least 0.8 of the pool's requests/s; at half its pace at most 15 ms more p99; nothing lost or
wrong, memory flat; equal verdicts. Clients and server share the machine's cores. The rival isolates nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

import psutil
from _shared import ROOT, argument_parser

from sandbox import Case, Client, Judgement, Limits, Pool, Problem, Program, SandboxError

CLIENTS: Final = (1, 8, 64, 256)
SUM: Final = Problem("sum", "stdio", (Case("3 4\n", "7"),))
RIVAL: Final = Path(__file__).with_name("_serve_rival.py")
DATA: Final = ROOT.parent / "shared" / "data" / "llm_samples_labelled"
KILL_S: Final = 10.0
MIB: Final = 1 << 20
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
    return {"per_s": len(times) / (time.monotonic() - start)} | figures(times)


async def rate(judge: Judge, per_s: float, seconds: float) -> dict[str, float]:
    """Requests that come at equal intervals, whatever became of those before."""
    times = list[float]()

    async def ask() -> None:
        start = time.monotonic()
        await judge(SUM, trivial()[0])
        times.append(time.monotonic() - start)

    async with asyncio.TaskGroup() as tasks:
        begin = time.monotonic()
        for number in range(int(per_s * seconds)):
            await asyncio.sleep(max(0.0, begin + number / per_s - time.monotonic()))
            tasks.create_task(ask())
    return {"per_s": per_s} | figures(times)


def figures(times: list[float]) -> dict[str, float]:
    return {"p50": percentile(times, 0.5), "p99": percentile(times, 0.99)}


@contextmanager
def started(*command: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server in a process of its own, and its URL."""
    process = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert process.stdout is not None
        url = next(word for word in process.stdout.readline().split() if word.startswith("http://"))
        yield process, url
    finally:
        process.terminate()
        process.wait(30)


@asynccontextmanager
async def judges() -> Any:
    """The ways to judge, by name."""
    with started("-m", "sandbox", "serve", "--port", "0") as (_, ours), started(str(RIVAL)) as (_, rival):
        async with Pool() as pool, Client(ours) as client, Client(rival) as other:
            yield {"pool": pool.judge, "http": client.judge, "process per request": other.judge}


async def compare(options: argparse.Namespace) -> None:
    """Pace and rate, each way in turn; medians over the rounds."""
    found = dict[tuple[str, Any], list[dict[str, float]]]()
    async with judges() as ways:
        for judge in ways.values():
            await pace(judge, 2, 1.0)
        for number in range(options.rounds):
            for clients in CLIENTS:
                for name in ways if number % 2 == 0 else reversed(list(ways)):
                    found.setdefault((name, clients), []).append(await pace(ways[name], clients, options.seconds))
            half = median(found["pool", 64], "per_s") / 2
            for name in ("pool", "http"):
                found.setdefault((name, "half"), []).append(await rate(ways[name], half, options.seconds))
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, medians of {options.rounds}")
    print(f"{'clients':<9}{'':<22}{'per s':>8}{'p50 ms':>9}{'p99 ms':>9}{'of pool':>9}{'p99 added':>11}")
    for (name, clients), rows in sorted(found.items(), key=lambda item: str(item[0][1]).zfill(5)):
        base = found["pool", clients]
        share = statistics.median(a["per_s"] / b["per_s"] for a, b in zip(rows, base, strict=True))
        added = statistics.median(a["p99"] - b["p99"] for a, b in zip(rows, base, strict=True))
        print(f"{clients!s:<9}{name:<22}" + "".join(f"{median(rows, key):>{width}.1f}" for key, width in COLUMNS)
              + f"{share:>9.2f}{added:>8.1f} ms")  # fmt: skip


COLUMNS: Final = (("per_s", 8), ("p50", 9), ("p99", 9))


def median(rows: list[dict[str, float]], column: str) -> float:
    return statistics.median(row[column] for row in rows)


async def load(seconds: float, clients: int) -> int:
    """Load with kills; returns the number of answers that were lost or wrong."""
    counts = {"answers": 0, "lost": 0, "wrong": 0, "kills": 0}
    memory = list[float]()
    with started("-m", "sandbox", "serve", "--port", "0") as (process, url):
        async with Client(url, at_once=clients) as client:
            end = time.monotonic() + seconds

            async def ask() -> None:
                while time.monotonic() < end:
                    program, verdict = trivial()
                    try:
                        done = await client.judge(SUM, program)
                    except SandboxError as error:
                        counts["lost"] += 1
                        print(f"lost: {error}", flush=True)
                    else:
                        counts["answers"] += 1
                        counts["wrong"] += done.verdict != verdict

            disturbing = asyncio.create_task(disturb(process.pid, counts, memory))
            await asyncio.gather(*(ask() for _ in range(clients)))
            disturbing.cancel()
            await asyncio.gather(disturbing, return_exceptions=True)
            retried = client.stats().infrastructure_failures
    shown = " ".join(f"{value:.0f}" for value in memory[:: max(1, len(memory) // 20)])
    print(f"{clients} clients, {seconds:g} s: {counts}, asked again {retried}; server's resident MiB: {shown}")
    return counts["lost"] + counts["wrong"]


async def disturb(pid: int, counts: dict[str, int], memory: list[float]) -> None:
    """Kill one of the server's workers every KILL_S, and note the memory of the server and its supervisor."""
    server = psutil.Process(pid)
    while True:
        await asyncio.sleep(KILL_S)
        supervisors = server.children()
        memory.append(sum(process.memory_info().rss for process in (server, *supervisors)) / MIB)
        workers = [worker for supervisor in supervisors for worker in supervisor.children()]
        if workers:
            workers[counts["kills"] % len(workers)].kill()
            counts["kills"] += 1


async def labelled(most: int) -> int:
    """Verdicts over HTTP beside those of the local pool; returns the number of differences."""
    jobs, labels = list[tuple[Problem, Program]](), list[bool]()
    for path in sorted(DATA.glob("*_seed_*.jsonl")):
        for row in map(json.loads, path.read_text().splitlines()[:most]):
            test = row["test"]
            test += "" if "check(" in test.splitlines()[-1] else f"\ncheck({row['entry_point']})"
            limits = Limits(cpu_s=2, wall_s=60)
            jobs.append((Problem(row["task_id"], "assert", (Case(test),), limits=limits), Program(row["solution"])))
            labels.append(bool(row.get("is_passing", row.get("is_solved"))))
    with started("-m", "sandbox", "serve", "--port", "0") as (_, url):
        async with Client(url) as client:
            far = await asyncio.gather(*itertools.starmap(client.judge, jobs))
    async with Pool() as pool:
        here = await asyncio.gather(*itertools.starmap(pool.judge, jobs))
    keys = ("verdict", "passed", "total", "weak")
    apart = [a.problem_id for a, b in zip(far, here, strict=True) if any(getattr(a, k) != getattr(b, k) for k in keys)]
    met = sum((done.verdict == "AC") is label for done, label in zip(far, labels, strict=True))
    print(f"{len(jobs)} labelled programs: {len(apart)} verdicts differ from the local pool's {apart[:5]}; "
          f"{met} meet their labels")  # fmt: skip
    return len(apart)


def main() -> int:
    parser = argument_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="default %(default)s")
    parser.add_argument("--seconds", type=float, default=4.0, help="of a figure (default %(default)s)")
    parser.add_argument("--load", type=float, metavar="S", help="only this")
    parser.add_argument("--clients", type=int, default=256, help="of --load (default %(default)s)")
    parser.add_argument("--labelled", type=int, nargs="?", const=10**6, metavar="N", help="only this; N of each file")
    options = parser.parse_args()
    if options.load:
        return int(asyncio.run(load(options.load, options.clients)) > 0)
    if options.labelled:
        return int(asyncio.run(labelled(options.labelled)) > 0)
    asyncio.run(compare(options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
