"""A pool over fake nodes, on a virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from fake_nodes import FakeMembers, FakeNode

from overlap.cluster.nodes import NodeJob
from overlap.cluster.pool import ClusterPool
from sandbox.core import Case, Judgement, Problem, Program

PROBLEMS = [Problem(f"p{i}", "stdio", (Case(str(i), str(i)),)) for i in range(4)]


def program(number: int) -> Program:
    return Program(str(number))


def takes(seconds: float) -> Callable[[NodeJob], float]:
    return lambda job: seconds


class Run:
    """A pool over fake nodes on a virtual clock."""

    def __init__(self, *nodes: FakeNode, once: bool = False) -> None:
        self.nodes, self.members, self.said, self._once = nodes, FakeMembers(nodes), list[str](), once

    async def __aenter__(self) -> ClusterPool:
        self.pool = ClusterPool(self.members, tell=self.said.append, judge_once=self._once)
        return await self.pool.__aenter__()

    async def __aexit__(self, *exc_info: Any) -> None:
        await self.pool.__aexit__()
        assert self.members.closed
        assert all(node.closed for node in self.nodes)


async def many(pool: ClusterPool, count: int) -> list[Judgement]:
    return list(await asyncio.gather(*(pool.judge(PROBLEMS[i % 4], program(i)) for i in range(count))))


def sources(judged: list[Judgement]) -> list[str]:
    return [judgement.compile_log for judgement in judged]  # where a fake node puts the program
