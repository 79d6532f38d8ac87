"""A pool over nodes that begins, is closed or is cancelled at any moment: who waits is told, and nothing is left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from fake_nodes import PROBLEMS, FakeMembers, FakeNode, Run, many, program, takes

from overlap.cluster.nodes import HeadLost
from overlap.cluster.pool import ClusterPool
from overlap.core.errors import VerifierError
from sandbox.errors import PoolClosed

pytestmark = pytest.mark.virtual


class Slow(FakeNode):
    """Its end takes long."""

    async def close(self) -> None:
        await asyncio.sleep(5.0)
        await super().close()


async def test_closing_fails_what_waits_also_for_an_equal_job_and_ends_every_agent() -> None:
    run = Run(FakeNode("a", 1, takes(100.0)), once=True)
    pool = await run.__aenter__()
    waits = [asyncio.create_task(pool.judge(PROBLEMS[0], program(i // 3))) for i in range(99)]
    await asyncio.sleep(1.0)
    await run.__aexit__()
    for end in await asyncio.gather(*waits, return_exceptions=True):
        assert isinstance(end, PoolClosed)
    with pytest.raises(PoolClosed):
        await pool.judge(PROBLEMS[0], program(0))


@pytest.mark.parametrize("steps", range(8))
async def test_closing_while_a_node_joins_ends_its_agent_too(steps: int) -> None:
    first, late = FakeNode("a", 1, takes(1.0)), FakeNode("b", 1, takes(1.0))
    run = Run(first)
    await run.__aenter__()
    run.members.add(late)
    for _ in range(steps):
        await asyncio.sleep(0)
    await run.__aexit__()
    assert late.closed or not run.members._coming.empty()


async def test_a_close_that_is_cancelled_fails_what_waits_and_leaves_the_cluster() -> None:
    run = Run(Slow("a", 1, takes(100.0)))
    pool = await run.__aenter__()
    waits = asyncio.create_task(pool.judge(PROBLEMS[0], program(0)))
    await asyncio.sleep(1.0)
    closing = asyncio.create_task(pool.__aexit__())
    await asyncio.sleep(1.0)
    closing.cancel()
    await asyncio.wait([closing])
    with pytest.raises(PoolClosed):
        await waits
    assert run.members.closed
    await asyncio.sleep(5.0)
    assert all(node.closed for node in run.nodes)


async def test_a_start_that_is_cancelled_leaves_the_cluster() -> None:
    run = Run()
    starting = asyncio.create_task(run.__aenter__())
    await asyncio.sleep(1.0)
    starting.cancel()
    await asyncio.wait([starting])
    assert run.members.closed
    assert len(asyncio.all_tasks()) == 1


@pytest.mark.parametrize("closed", [False, True])
async def test_when_the_head_is_lost_who_waits_and_who_asks_is_told_and_the_cluster_is_left_behind_its_last_agent(
    closed: bool,
) -> None:
    said, node, lives = list[str](), Slow("a", 2, takes(100.0)), list[bool]()

    class Headless(FakeMembers):
        async def joined(self) -> AsyncIterator[FakeNode]:
            yield node
            await asyncio.sleep(1.0)
            raise HeadLost("its head does not answer")

        async def close(self) -> None:
            lives.append(not node.closed)

    async with ClusterPool(Headless(), tell=said.append) as pool:
        with pytest.raises(VerifierError, match="the cluster is lost: its head does not answer"):
            await many(pool, 8)
        with pytest.raises(VerifierError, match="the cluster is lost"):
            await pool.judge(PROBLEMS[0], program(9))
        if not closed:  # the pool is closed meanwhile
            await asyncio.sleep(6.0)
            assert lives == [False]
    assert lives == [False]
    assert said[-1] == "the cluster is lost: its head does not answer"
