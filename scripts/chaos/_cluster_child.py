"""The driver on the head of a cluster that ``cluster.py`` harms: it keeps programs in flight over ``ClusterPool``
and counts what comes back. What happens goes to stdout, a line of JSON each.

    python scripts/chaos/_cluster_child.py ADDRESS storm    doubles judge on the nodes, until SIGUSR1
    python scripts/chaos/_cluster_child.py ADDRESS zoo      the hack zoo, in the nodes' sandboxes
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import signal
import time
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from overlap.cluster.members import RayMembers
from overlap.cluster.pool import ClusterPool
from overlap.cluster.ray_cluster import RayCluster
from sandbox.core.nouns import Case, Judgement, Program, Verdict
from sandbox.core.problem import Problem
from sandbox.errors import SandboxError
from sandbox.zoo import catalogue, exhibits

PLACES = 8
"""Programs that a double judges at once."""
IN_FLIGHT = 96
PROBLEMS = [Problem(f"p{number}", "stdio", (Case("", f"{number}"),)) for number in range(16)]
REST_S = 120.0
"""What is in flight at the end is judged within this time."""


def say(what: str, **more: Any) -> None:
    print(json.dumps({"what": what, "at": time.monotonic(), **more}), flush=True)


class Double:
    """Judges nothing: after a while it gives the program back, so that one sees whose answer came."""

    def __init__(self, workers: int = 0) -> None:
        self.workers, self._places = PLACES, asyncio.Semaphore(PLACES)

    async def __aenter__(self) -> Double:
        return self

    async def __aexit__(self, *exc_info: Any) -> None:
        pass

    async def judge(self, problem: Problem, program: Program, *, turn: int = 0) -> Judgement:
        took = 0.05 + zlib.crc32(program.source.encode()) % 1000 / 1000
        async with self._places:
            await asyncio.sleep(took)
        back = program.source
        return Judgement(problem.id, Verdict.AC, (), 1, 1, False, "A", program.language, "", back, 0.0, took)

    def pids(self) -> tuple[int, ...]:
        return ()


class Books:
    """How often each program was answered, and how often the pool took a judgement for it."""

    def __init__(self, pool: ClusterPool) -> None:
        self.asked = 0
        self.failed: list[str] = []
        self.answered, self.taken = Counter[int](), Counter[str]()
        self._pool, self._judged = pool, pool._judged
        pool._judged = self._take  # type: ignore[method-assign]

    def _take(self, desk: Any, work: Any, *judgement: Any) -> None:
        self.taken[work.program.source] += 1
        self._judged(desk, work, *judgement)

    async def ask(self) -> None:
        """Have one more program judged."""
        self.asked += 1
        number = self.asked
        try:
            problem = PROBLEMS[number % len(PROBLEMS)]
            done = await self._pool.judge(problem, Program(f"{number}"), turn=number // 8)
            if done.compile_log != f"{number}":
                raise SandboxError(f"program {number} got the answer of {done.compile_log}")
            self.answered[number] += 1
        except SandboxError as error:
            self.failed.append(f"{type(error).__name__}: {error}")

    def close(self) -> None:
        """Say what they are."""
        say(
            "books",
            asked=self.asked,
            lost=self.asked - len(self.answered),
            twice=sum(count - 1 for count in self.taken.values()),
            held=len(self._pool._router.everything()),
            failed=self.failed[:5],
        )


async def storm(pool: ClusterPool) -> None:
    """Keep so many in flight until the signal, then let them end."""
    books, stop = Books(pool), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, stop.set)
    flight = {asyncio.create_task(books.ask()) for _ in range(IN_FLIGHT)}
    say("ready")
    while not stop.is_set():
        done, flight = await asyncio.wait(flight, timeout=0.5, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        flight |= {asyncio.create_task(books.ask()) for _ in done}
        say("count", answered=len(books.answered))
    await asyncio.wait(flight, timeout=REST_S)
    books.close()


async def through_the_zoo(pool: ClusterPool, take: int) -> None:
    """Every program of the zoo, each followed by an honest one on each node."""
    say("ready")
    honest, hostile, other = Counter[str](), Counter[str](), list[str]()
    nodes = len(pool.nodes())
    for number, entry in enumerate(catalogue.entries()[::take]):
        ends = [pool.judge(entry.problem, Program(attack.source, attack.language)) for attack in entry.attacks]
        twins = [pool.judge(entry.problem, program) for program in entry.honest]
        judged = await asyncio.gather(*ends, *twins)
        after = [Program(f"{exhibits.HONEST_SUM}# {number} {node}\n") for node in range(nodes)]
        judged += await asyncio.gather(*(pool.judge(exhibits.SUM, program) for program in after))
        for attack, done in zip(entry.attacks, judged, strict=False):
            hostile[done.verdict.value] += 1
            why = next((case.message for case in done.cases if case.verdict is not Verdict.AC), done.compile_log)
            if done.verdict.value not in attack.verdicts(done.tier) or not re.search(attack.cause, why):
                other.append(f"{entry.id}: {done.verdict} ({why[:100]}), not {attack.want} ({attack.cause})")
        honest.update(done.verdict.value for done in judged[len(ends) :])
        say("entry", id=entry.id, hostile=hostile, honest=honest)
    say("zoo", hostile=hostile, honest=honest, other=other, nodes=sorted(pool.nodes()))


async def main(args: argparse.Namespace) -> None:
    from _cluster_child import Double as Found  # an agent finds it by the name of this module

    members = RayMembers(RayCluster(args.address), **({"make_pool": Found} if args.what == "storm" else {}))
    work: Callable[[ClusterPool], Awaitable[None]] = storm
    if args.what == "zoo":
        work = lambda pool: through_the_zoo(pool, args.take)  # noqa: E731
    async with ClusterPool(members, tell=lambda line: say("told", line=line), judge_once=False) as pool:
        async with asyncio.timeout(60.0):
            while len(pool.nodes()) < args.nodes:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        await work(pool)
    say("closed")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("what", choices=("storm", "zoo"))
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--take", type=int, default=1)
    asyncio.run(main(parser.parse_args()))
