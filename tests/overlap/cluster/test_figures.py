"""What a judgement and the figures of a run say of the nodes, whatever their clocks are."""

from __future__ import annotations

import asyncio

import pytest
from cluster_runs import PROBLEMS, Run, many, program, takes
from fake_nodes import FakeMembers, FakeNode

from overlap.clock import now
from overlap.cluster.pool import ClusterPool

pytestmark = pytest.mark.virtual


async def test_a_judgement_knows_its_node_and_when_it_began_there_whatever_that_nodes_clock_says() -> None:
    took = [3.0, 3.0, 3.01, 3.01, 3.02, 3.02]  # the last answers wait for the next call
    nodes = [
        FakeNode(name, 3, lambda job: took[job.number - 1], ahead_s=ahead_s)
        for name, ahead_s in (("a", 5000.0), ("b", -5000.0))
    ]
    async with Run(*nodes) as pool:
        await asyncio.sleep(1.0)
        began = now()
        judged = await many(pool, 6)
        assert now() - began > 3.04
        assert [judgement.node for judgement in judged] == ["a", "b"] * 3
        assert [judgement.run_s for judgement in judged] == took
        assert [judgement.queue_s for judgement in judged] == pytest.approx([0.0] * 6, abs=1e-3)


async def test_who_has_the_judgement_of_an_equal_program_waited_all_the_time_and_knows_its_node() -> None:
    async with ClusterPool(FakeMembers([FakeNode("a", 2, takes(3.0))]), tell=lambda line: None) as pool:
        first, second = await asyncio.gather(*(pool.judge(PROBLEMS[0], program(7)) for _ in range(2)))
        assert (first.run_s, second.run_s) == (3.0, 0.0)
        assert first.queue_s < 0.1
        assert second.queue_s >= 3.0
        assert first.node == second.node == "a"


async def test_what_each_node_did_is_told_since_the_last_time_and_what_a_lost_one_did_once_more() -> None:
    nodes = FakeNode("a", 2, takes(5.0), ahead_s=7.0), FakeNode("b", 2, takes(5.0))
    async with Run(*nodes) as pool:
        pool.take_nodes()
        await many(pool, 4)
        figures = pool.take_nodes()
        assert figures.seconds == pytest.approx(5.0, abs=0.2)
        for node in figures.nodes:
            assert (node.judged, node.run_s, node.lost, node.workers, node.tier) == (2, 10.0, 0, 2, "A")
            assert node.busy_share(figures.seconds) == pytest.approx(1.0, abs=0.05)
            assert node.clock_s == pytest.approx({"a": 7.0, "b": 0.0}[node.node], abs=node.error_s)
        judging = asyncio.create_task(many(pool, 4))
        await asyncio.sleep(1.0)
        nodes[0].die()
        await judging
        lost = {node.node: node for node in pool.take_nodes().nodes}
        assert (lost["a"].lost, lost["a"].workers, lost["b"].judged) == (2, 0, 4)
        assert [node.node for node in pool.take_nodes().nodes] == ["b"]


async def test_programs_judged_at_once_are_those_of_the_nodes_that_are_there() -> None:
    nodes = FakeNode("a", 2, takes(5.0)), FakeNode("b", 3, takes(5.0))
    async with Run(*nodes) as pool:
        await asyncio.sleep(1.0)
        assert pool.concurrency == 5
        nodes[0].die()
        await asyncio.sleep(5.0)
        assert pool.concurrency == 3
