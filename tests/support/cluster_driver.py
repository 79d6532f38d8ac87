"""A driver on a machine: judges programs over its cluster, and says what happens: ``python cluster_driver.py ...``."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import threading
from functools import partial
from pathlib import Path

from commands import say

from overlap.cluster.members import RayMembers
from overlap.cluster.pool import ClusterPool
from overlap.cluster.ray_cluster import RayCluster
from sandbox.core.nouns import Case, Limits, Program
from sandbox.core.problem import Problem
from sandbox.pool.pool import Pool

PROBLEM = Problem("echo", "stdio", (Case("2", "2"),), limits=Limits(cpu_s=5.0))


async def main(args: argparse.Namespace) -> None:
    cluster = RayCluster(args.address)
    members = RayMembers(cluster, partial(Pool, isolation=args.isolation))
    async with ClusterPool(members, tell=lambda line: say("told", line=line)) as pool:
        while len(pool._router.desks) < args.nodes:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        say("ready", nodes={node.node: node._asdict() for node in pool.take_nodes().nodes})
        while args.program and not args.program.exists():  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        sleeps = f"import time\ntime.sleep({args.seconds})\nprint(input())"
        text = args.program.read_text() if args.program else sleeps
        ended = 0

        async def one(number: int) -> None:
            nonlocal ended
            source = f"{text}  # {number}"
            judged = await pool.judge(PROBLEM, Program(source), turn=number)
            ended += 1
            say("judged", number=number, verdict=judged.verdict, node=judged.node, ended=ended)

        await asyncio.gather(*(one(number) for number in range(args.count)))
        say("all", asked=args.count, left=len(pool._router.everything()))
    threads = [
        thread.name for thread in threading.enumerate() if not (thread.daemon or thread.name.startswith("asyncio_"))
    ]
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    say("closed", children=children, threads=threads, ray="ray" in sys.modules)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--program", type=Path, help="judged in the place of one that sleeps, once this file is there")
    parser.add_argument("--isolation", default="auto")
    asyncio.run(main(parser.parse_args()))
