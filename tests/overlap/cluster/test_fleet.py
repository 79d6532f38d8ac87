"""Which node an engine gets when its own is gone."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from fleets import CFG, Cluster, fleet_of, seats

from overlap.clock import now
from overlap.cluster import survey
from overlap.cluster.fleet import KNOWN_S, NODE_S
from overlap.cluster.nodes import HeadLost, NodeLost
from overlap.errors import ConfigError
from overlap.placement import NodeDevices

pytestmark = pytest.mark.virtual


async def test_an_engine_has_its_own_node_again_as_long_as_that_is_there() -> None:
    cluster, told = Cluster(4, 4, 4, 4), list[str]()
    fleet, (first, second) = fleet_of(cluster, tell=told.append), seats(cluster)
    assert [await fleet.take(seat) for seat in (first, second, first)] == [first, second, first]
    assert told == []


async def test_an_engine_whose_node_is_gone_moves_to_one_that_is_free_and_large_enough() -> None:
    cfg = replace(CFG, rollout=replace(CFG.rollout, tensor_parallel=2))
    cluster, told = Cluster(4, 4, 4, 1, 3, 2, 2), list[str]()
    fleet = fleet_of(cluster, cfg, told.append, fits=lambda seat, node: (seat.node, node.name) == ("n6", "n6"))
    first, _ = seats(cluster, cfg)
    cluster.refused.add("n4")
    del cluster.nodes[first.node]
    moved = await fleet.take(first)
    assert (moved.node, moved.index, moved.cores) == ("n6", first.index, ((0,), (1,)))
    assert told == [f"engine 0 moves from node {first.node} to node n6"]
    cluster.nodes[first.node] = Cluster.node(1, 4)
    assert await fleet.take(first) == first
    assert not fleet.moved
    cluster.draining.add(first.node)
    assert (await fleet.take(first)).node == "n6"


async def test_an_engine_waits_for_a_node_and_not_for_ever() -> None:
    cluster, told = Cluster(4, 4, 4), list[str]()
    fleet, (first, _) = fleet_of(cluster, tell=told.append), seats(cluster)
    del cluster.nodes[first.node]
    asyncio.get_running_loop().call_later(100.0, cluster.nodes.update, {"n7": Cluster.node(7, 4)})
    assert (await fleet.take(first)).node == "n7"
    assert 100.0 <= now() <= 102.0
    del cluster.nodes["n7"]
    with pytest.raises(NodeLost, match="no node had room for it"):
        await fleet.take(first)
    assert now() == pytest.approx(100.0 + NODE_S, abs=5.0)
    assert told[0] == f"engine 0 waits for node {first.node}, or one as large that has no engine"
    cluster.head_lost.set()
    with pytest.raises(HeadLost):
        await fleet.take(first)


async def test_two_engines_that_lose_their_nodes_at_once_do_not_move_to_the_same_one() -> None:
    cluster = Cluster(4, 4, 4, 4)
    fleet, (first, second) = fleet_of(cluster), seats(cluster)
    about = fleet.about

    async def slowly(name: str) -> NodeDevices | None:
        await asyncio.sleep(1.0)
        return await about(name)

    fleet.about = slowly  # type: ignore[method-assign]
    del cluster.nodes[first.node], cluster.nodes[second.node]
    takes = [asyncio.create_task(fleet.take(seat)) for seat in (first, second)]
    await asyncio.sleep(50.0)
    assert [task.done() for task in takes].count(True) == 1
    cluster.nodes["n9"] = Cluster.node(9, 4)
    assert {(await task).node for task in takes} == {"n3", "n9"}


async def test_a_node_that_cannot_be_used_is_not_asked_again_and_again() -> None:
    cluster = Cluster(4, 4, 4, 4)
    fleet, (first, _) = fleet_of(cluster), seats(cluster)
    cluster.refused |= {"n0", "n3"}
    del cluster.nodes[first.node]
    taking = asyncio.create_task(fleet.take(first))
    await asyncio.sleep(5 * KNOWN_S)
    taking.cancel()
    assert 5 <= cluster.surveyed.count("n3") <= 6


async def test_a_survey_tells_of_nodes_that_cannot_be_used_and_needs_the_drivers_own() -> None:
    cluster, told = Cluster(4, 2, 3), list[str]()
    cluster.refused.add("n1")
    assert [node.name for node in await survey(cluster, "cpu", told.append)] == ["n0", "n2"]
    assert told == ["node n1 is not used: another version of this package, or of Python, is installed there"]
    cluster.nodes["n2"], cluster.kept = Cluster.node(2, 0, gpus=3), 1
    assert [node.devices.names for node in await survey(cluster, "auto", print)] == [(), ("0", "1")]
    cluster.refused.add("n0")
    with pytest.raises(ConfigError, match="this machine's own node cannot be used"):
        await survey(cluster, "cpu", told.append)
    assert cluster.users == 0


async def test_a_survey_in_which_the_head_is_lost_says_so_and_blames_no_node(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, actor, told = Cluster(4, 4), Cluster.actor, list[str]()

    async def loses(self: Cluster, *asked: Any, **how: Any) -> Any:
        self.head_lost.set()
        return await actor(self, *asked, **how)

    monkeypatch.setattr(Cluster, "actor", loses)
    with pytest.raises(HeadLost, match="its head does not answer"):
        await survey(cluster, "cpu", told.append)
    assert (told, cluster.users) == ([], 0)
