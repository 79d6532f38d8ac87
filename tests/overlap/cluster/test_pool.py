"""Jobs over nodes that die, freeze and join: each is judged once, where there is room, the oldest group first;
and what is told of the nodes, whatever their clocks are.
"""

from __future__ import annotations

import asyncio
import random
from unittest.mock import AsyncMock

import pytest
from fake_nodes import PROBLEMS, FakeNode, Run, many, program, sources, takes

from overlap.cluster.nodes import NodeJob, NodeParcel, NodeReply
from overlap.cluster.pool import ALONE_S, LOST_MAX, TRIES
from overlap.core.clock import now
from sandbox.core.nouns import Case
from sandbox.core.problem import Problem
from sandbox.errors import CheckerError, SandboxError, ToolchainMissing, to_wire

pytestmark = pytest.mark.virtual


@pytest.mark.promise("cluster-judging")
async def test_every_job_is_judged_once_and_a_node_with_twice_the_workers_does_twice_the_work() -> None:
    small, large = FakeNode("small", 2, takes(0.5)), FakeNode("large", 4, takes(0.5))
    async with Run(small, large) as pool:
        assert sources(await many(pool, 600)) == [str(i) for i in range(600)]
        assert sorted(small.judged + large.judged) == list(range(1, 601))
        assert len(large.judged) == pytest.approx(2 * len(small.judged), rel=0.1)
        assert now() < 1.1 * 600 * 0.5 / 6


async def test_a_job_with_which_node_after_node_is_lost_fails_and_harms_no_other() -> None:
    async with (run := Run(FakeNode("0", 1, takes(100.0)))) as pool:
        bad = asyncio.create_task(pool.judge(PROBLEMS[0], program(0)))
        node = run.nodes[0]
        for number in range(1, LOST_MAX + 1):
            await asyncio.sleep(1.0)
            node.die()
            node = FakeNode(str(number), 1, takes(100.0))
            run.members.add(node)
        with pytest.raises(SandboxError, match=f"{LOST_MAX} nodes were lost"):
            await bad
        assert sources([await pool.judge(PROBLEMS[0], program(1))]) == ["1"]


@pytest.mark.promise("cluster-judging")
async def test_jobs_of_a_frozen_node_run_elsewhere_within_twelve_seconds_and_it_gets_others_when_it_is_back() -> None:
    frozen, other = FakeNode("frozen", 2, takes(3.0)), FakeNode("other", 2, takes(3.0))
    async with (run := Run(frozen, other)) as pool:
        judging = asyncio.create_task(many(pool, 4))
        await asyncio.sleep(1.0)
        frozen.freeze()
        began = now()
        judged = await judging
        assert sources(judged) == ["0", "1", "2", "3"]
        assert now() - began < 12.0 + 3.0
        assert len(frozen.judged) == 2  # they ended there, too
        frozen.thaw()
        await asyncio.sleep(1.0)
        assert sources(await many(pool, 4)) == ["0", "1", "2", "3"]
        assert len(frozen.judged) > 2
    assert [line for line in run.said if line.startswith("node frozen")][1:] == [
        "node frozen is lost (no answer within 8 s): 2 jobs go elsewhere",
        "node frozen judges programs: 2 at once, tier A",
    ]


async def test_jobs_ahead_of_a_long_one_are_taken_back_where_another_node_idles() -> None:
    """Short jobs have taught a node to hold some ahead; then one takes long."""

    def seconds(job: NodeJob) -> float:
        return 100.0 if job.number == 41 else 0.05

    busy, idle = FakeNode("busy", 1, seconds), FakeNode("idle", 1, takes(0.05))
    async with (run := Run(busy)) as pool:
        await many(pool, 40)
        judging = [asyncio.create_task(pool.judge(PROBLEMS[0], program(number))) for number in range(41, 45)]
        await asyncio.sleep(1.0)
        assert len(pool._router.desks["busy"].held) > 2
        began = now()
        run.members.add(idle)
        await asyncio.wait(judging[1:])
        assert now() - began < 3.0
        assert sorted(idle.judged) == [42, 43, 44]
        assert busy.judged == list(range(1, 41))


async def test_jobs_wait_for_a_node_and_fail_when_there_is_none_for_long_and_are_not_judged_when_one_comes() -> None:
    node, late = FakeNode("a", 1, takes(1.0)), FakeNode("b", 1, takes(1.0))
    async with (run := Run(node)) as pool:
        node.die()
        with pytest.raises(SandboxError, match=f"no node of the cluster to judge programs for {ALONE_S:g} s"):
            await pool.judge(PROBLEMS[0], program(0))
        waits = asyncio.create_task(pool.judge(PROBLEMS[0], program(1)))
        began = now()
        run.members.add(late)
        await waits
        assert now() - began < 1.1  # it has work at once
        assert late.judged == [2]
        assert not pool._router.everything()


async def test_a_cluster_without_a_usable_node_is_said_to_be_so_and_the_node_is_named_once() -> None:
    tries = [FakeNode("weak", 4, takes(1.0), refused="tier C, and verify.isolation=A") for _ in range(3)]
    run = Run(*tries)
    with pytest.raises(SandboxError, match=r"no node of the cluster .* weak: tier C"):
        await run.__aenter__()
    assert run.said == ["node weak is not used: tier C, and verify.isolation=A"]
    assert now() == pytest.approx(ALONE_S)


class Faulty(FakeNode):
    """Answers by a fault, at once, one job of so many."""

    def __init__(self, name: str, workers: int, error: SandboxError, of: int = 1) -> None:
        super().__init__(name, workers, takes(0.01))
        self.error, self.of = error, of

    async def exchange(self, parcel: NodeParcel) -> NodeReply:
        reply, fault = await super().exchange(parcel), to_wire(self.error)
        fails = [answer.number % self.of == self.of - 1 for answer in reply.answers]
        failed = [answer._replace(judgement=None, fault=fault) for answer in reply.answers]
        return reply._replace(answers=[b if f else a for a, b, f in zip(reply.answers, failed, fails, strict=True)])


@pytest.mark.parametrize(("of", "lost"), [(1, True), (8, False)])
async def test_jobs_that_a_node_cannot_do_succeed_elsewhere_and_it_is_lost_if_it_can_do_none(
    of: int, lost: bool
) -> None:
    async with (
        run := Run(Faulty("poor", 8, ToolchainMissing("no g++"), of), FakeNode("whole", 2, takes(0.5)))
    ) as pool:
        for _ in range(5):
            assert sources(await many(pool, 8)) == [str(i) for i in range(8)]
        assert sorted(pool._router.desks) == ["poor", "whole"][lost:]
    assert any("node poor is lost" in line and "no g++" in line for line in run.said) is lost


@pytest.mark.parametrize(
    ("error", "tries", "left"), [(ToolchainMissing("no g++"), TRIES, 5), (CheckerError("bad"), 1, 5)]
)
async def test_a_job_that_fails_is_tried_on_some_nodes_and_only_once_where_that_is_its_own_fault(
    error: SandboxError, tries: int, left: int
) -> None:
    nodes = [Faulty(f"n{i}", 1, error) for i in range(5)]
    async with Run(*nodes) as pool:
        for number in range(1, 3):
            with pytest.raises(type(error), match=str(error)[:4]):
                await pool.judge(PROBLEMS[0], program(number))
            assert sum(len(node.judged) for node in nodes) == number * tries
        assert len(pool._router.desks) == left


@pytest.mark.parametrize("stood_s", [10.0, 300.0])
async def test_a_driver_that_stood_still_loses_no_node(stood_s: float) -> None:
    nodes = FakeNode("a", 2, takes(0.5)), FakeNode("b", 2, takes(0.5))
    async with (run := Run(*nodes)) as pool:
        judging = asyncio.create_task(many(pool, 40))
        for _ in range(4):
            await asyncio.sleep(1.03)
            asyncio.get_running_loop()._clock.now += stood_s  # type: ignore[attr-defined] # no code of ours runs so long
        await judging
    assert not [line for line in run.said if "silent" in line or "lost" in line]


async def test_a_driver_that_stood_still_has_not_waited_for_a_node_meanwhile() -> None:
    async with (run := Run(FakeNode("a", 1, takes(1.0)))) as pool:
        run.nodes[0].die()
        waits = asyncio.create_task(pool.judge(PROBLEMS[0], program(0)))
        await asyncio.sleep(1.5)
        asyncio.get_running_loop()._clock.now += 2 * ALONE_S  # type: ignore[attr-defined]
        await asyncio.sleep(1.5)
        run.members.add(FakeNode("b", 1, takes(1.0)))
        assert sources([await waits]) == ["0"]


async def test_a_fault_of_the_driver_itself_fails_what_waits_and_what_comes_later() -> None:
    node = FakeNode("a", 1, takes(1.0))
    node.exchange = AsyncMock(side_effect=KeyError("what is this"))  # type: ignore[method-assign]
    async with Run(node) as pool:
        for _ in range(2):
            with pytest.raises(SandboxError, match=r"driver of the cluster failed.*what is this"):
                await pool.judge(PROBLEMS[0], program(0))


@pytest.mark.promise("cluster-judging")
@pytest.mark.parametrize("seed", range(20))
async def test_a_storm_of_deaths_freezes_joins_and_cancelled_jobs_loses_no_job_and_counts_none_twice(
    seed: int,
) -> None:
    rng = random.Random(seed)

    def node(name: str) -> FakeNode:
        return FakeNode(name, rng.choice((1, 2, 8)), lambda job: rng.expovariate(1.0))

    steady, nodes = node("steady"), [node(f"first {i}") for i in range(3)]
    run = Run(steady, *nodes)
    async with run as pool:
        judging = asyncio.create_task(many(pool, 300))
        unwanted = [asyncio.create_task(pool.judge(PROBLEMS[i % 4], program(i))) for i in range(300, 400)]
        for moment in range(50):
            await asyncio.sleep(rng.uniform(0.0, 3.0))
            for each in unwanted[2 * moment : 2 * moment + 2]:
                each.cancel()
            what, who = rng.choice(("die", "freeze", "thaw", "join")), rng.choice(nodes)
            if what == "join":
                nodes.append(node(f"late {moment}"))
                run.members.add(nodes[-1])
            else:
                getattr(who, what)()
        assert sources(await judging) == [str(i) for i in range(300)]
        assert not pool._router.everything()
        assert not [line for line in run.said if "has lost jobs" in line]  # of what was withdrawn it has no account
        run.nodes = ()  # those that are frozen to the end are closed, too, but not these doubles' doing


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


async def test_an_equal_program_for_an_equal_problem_is_judged_once_and_who_waited_for_that_knows_it() -> None:
    node = FakeNode("a", 2, takes(3.0))
    async with Run(node, once=True) as pool:
        twin = Problem("p0", "stdio", (Case("0", "0"),))
        first, second = await asyncio.gather(*(pool.judge(each, program(7)) for each in (PROBLEMS[0], twin)))
        assert (first.run_s, second.run_s) == (3.0, 0.0)
        assert first.queue_s < 0.1
        assert second.queue_s >= 3.0
        assert first.node == second.node == "a"
        assert len(node.judged) == 1
