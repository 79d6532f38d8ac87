"""Which node an engine gets when its own is gone."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from fleets import CFG, Fleet, seats

from overlap.clock import now
from overlap.cluster.nodes import NodeLost, NodeRefused
from overlap.cluster.sites import NODE_S, UNFIT_S, Berths
from overlap.placement import NodeDevices

pytestmark = pytest.mark.virtual


async def test_an_engine_has_its_own_node_again_as_long_as_that_is_there() -> None:
    fleet, told = Fleet(4, 4, 4, 4), list[str]()
    berths, (first, second) = Berths(CFG, fleet, told.append), seats(fleet)
    assert (await berths.take(first), await berths.take(second)) == (first, second)
    assert await berths.take(first) == first
    assert told == []


async def test_an_engine_whose_node_is_gone_moves_to_one_that_is_free_and_large_enough() -> None:
    cfg = replace(CFG, rollout=replace(CFG.rollout, tensor_parallel=2))
    fleet, told = Fleet(4, 4, 4, 1, 3, 2), list[str]()
    first, second = seats(fleet, cfg)
    berths = Berths(cfg, fleet, told.append)
    await berths.take(first)
    await berths.take(second)
    fleet.refused.add("n4")
    del fleet.nodes[first.node]
    moved = await berths.take(first)
    assert (moved.node, moved.index, moved.cores) == ("n5", first.index, ((0,), (1,)))
    assert told == [f"engine 0 moves from node {first.node} to node n5"]
    fleet.nodes[first.node] = Fleet.node(1, 4)
    assert await berths.take(first) == first


async def test_an_engine_waits_for_a_node_and_not_for_ever() -> None:
    fleet, told = Fleet(4, 4, 4), list[str]()
    berths, (first, second) = Berths(CFG, fleet, told.append), seats(fleet)
    await berths.take(second)
    del fleet.nodes[first.node]
    asyncio.get_running_loop().call_later(100.0, fleet.nodes.update, {"n7": Fleet.node(7, 4)})
    assert (await berths.take(first)).node == "n7"
    assert 100.0 <= now() <= 102.0
    del fleet.nodes["n7"]
    with pytest.raises(NodeLost, match="no node had room for it"):
        await berths.take(first)
    assert now() == pytest.approx(100.0 + NODE_S, abs=5.0)
    assert told[0] == f"engine 0 waits for node {first.node}, or one as large that has no engine"


async def test_an_engine_moves_to_no_node_whose_memory_is_too_small_for_it() -> None:
    fleet = Fleet(4, 4, 4, 4, 4)
    first, second = seats(fleet)
    berths = Berths(CFG, fleet, print, lambda seat, node: seat.node == node.name and node.name == "n4")
    await berths.take(second)
    del fleet.nodes[first.node]
    assert (await berths.take(first)).node == "n4"


async def test_two_engines_that_lose_their_nodes_at_once_do_not_move_to_the_same_one() -> None:
    fleet = Fleet(4, 4, 4, 4)
    first, second = seats(fleet)
    about = fleet.about

    async def slowly(name: str) -> NodeDevices:
        await asyncio.sleep(1.0)
        return await about(name)

    fleet.about = slowly  # type: ignore[method-assign]
    berths = Berths(CFG, fleet, print)
    del fleet.nodes[first.node], fleet.nodes[second.node]
    takes = [asyncio.create_task(berths.take(seat)) for seat in (first, second)]
    await asyncio.sleep(50.0)
    assert [task.done() for task in takes].count(True) == 1
    fleet.nodes["n9"] = Fleet.node(9, 4)
    assert {(await task).node for task in takes} == {"n3", "n9"}


async def test_a_node_that_cannot_be_used_is_not_asked_again_and_again() -> None:
    fleet, asks = Fleet(4, 4, 4, 4), 0
    first, second = seats(fleet)

    async def refuse(name: str) -> NodeDevices:
        nonlocal asks
        asks += 1
        raise NodeRefused("another version")

    fleet.about = refuse  # type: ignore[method-assign]
    berths = Berths(CFG, fleet, print)
    await berths.take(second)
    del fleet.nodes[first.node]
    taking = asyncio.create_task(berths.take(first))
    await asyncio.sleep(10 * UNFIT_S)
    taking.cancel()
    assert asks <= 2 * 10 + 2  # of two nodes, one of them the driver's
