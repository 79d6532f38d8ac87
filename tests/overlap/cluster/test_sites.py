"""Engines on nodes: which node an engine gets when its own is gone, and how weights come to it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fleets import CFG, Fleet, seats

from overlap.clock import now
from overlap.cluster import pieces as pieces_module
from overlap.cluster.far_peer import GONE_S
from overlap.cluster.nodes import HeadLost, NodeLost, NodeSilent
from overlap.cluster.pieces import KEPT, Key, Pieces
from overlap.cluster.sites import REST_S, Berths, FarSite
from overlap.errors import ClusterLost, EngineError
from overlap.process import ChildProcesses
from overlap.weights.copies import Piece


@pytest.mark.virtual
async def test_a_node_that_was_silent_at_the_end_of_its_engine_rests_until_that_has_ended(tmp_path: Path) -> None:
    fleet = Fleet(4, 4, 4)
    berths, (first, _) = Berths(CFG, fleet, print), seats(fleet)
    site = FarSite(fleet, berths)
    life = ChildProcesses("engine-0", EngineError, tmp_path)
    peer = await site.start(life, "the engine process", "host", {"A": "1"}, first)
    assert (fleet.hosts[0].name, fleet.hosts[0].environment) == (first.node, {"A": "1", **first.environment})
    fleet.hosts[0].sure = False
    life.fail("silent")
    await peer.close()
    del fleet.nodes["n2" if first.node == "n1" else "n1"]
    began = now()
    assert await berths.take(first) == first
    assert now() - began == pytest.approx(REST_S, abs=2.0)
    assert fleet.users == 0


@pytest.mark.virtual
async def test_an_engine_without_a_node_ends_its_life(tmp_path: Path) -> None:
    fleet = Fleet(4, 4, 4)
    first, _ = seats(fleet)
    fleet.nodes.clear()
    site, life = FarSite(fleet, Berths(CFG, fleet, print)), ChildProcesses("engine-0", EngineError, tmp_path)
    with pytest.raises(EngineError, match="the engine process cannot be started: no node had room"):
        await site.start(life, "the engine process", "host", {}, first)
    life = ChildProcesses("engine-0", EngineError, tmp_path)
    starts = asyncio.create_task(site.start(life, "the engine process", "host", {}, first))
    await asyncio.sleep(5.0)
    life.fail("it is no longer wanted")
    with pytest.raises(EngineError, match="no longer wanted"):
        await starts
    assert fleet.users == 0


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(pieces_module, "PIECE_BYTES", 10)
    (tmp_path / "weights").write_bytes(os.urandom(95))
    return {"path": str(tmp_path / "weights"), "size": 95, "tensors": []}


async def started(fleet: Fleet, folder: Path) -> list[tuple[FarSite, ChildProcesses]]:
    berths, made = Berths(CFG, fleet, print), []
    for seat in seats(fleet):
        site, life = FarSite(fleet, berths), ChildProcesses("engine", EngineError, folder)
        await site.start(life, "the engine process", "host", {}, seat)
        made.append((site, life))
    return made


async def closed(made: Sequence[tuple[FarSite, ChildProcesses]]) -> None:
    for site, life in made:
        await life.close()
        assert site._host is not None


async def test_weights_are_put_once_for_all_nodes_and_held_there_no_longer_than_somebody_takes_them(
    tmp_path: Path, weights: dict[str, Any]
) -> None:
    sent = Path(weights["path"]).read_bytes()

    fleet = Fleet(4, 4, 4)
    made = await started(fleet, tmp_path)

    async def load(site: FarSite, life: ChildProcesses) -> None:
        async with site.brought(life, weights, 3) as found:
            assert Path(found["path"]).read_bytes() == sent
            assert {**found, "path": weights["path"]} == weights

    await asyncio.gather(*(load(*one) for one in made))
    assert fleet.puts == [10] * 9 + [5]
    assert not fleet.pieces._made
    await closed(made)


async def test_a_node_far_behind_has_pieces_put_again_and_few_are_held(tmp_path: Path, weights: dict[str, Any]) -> None:
    fleet = Fleet(4, 4, 4)
    made = await started(fleet, tmp_path)

    async def load(site: FarSite, life: ChildProcesses, after: int) -> None:
        while len(fleet.puts) < after:  # noqa: ASYNC110
            await asyncio.sleep(0)
        async with site.brought(life, weights, 3):
            assert len(fleet.pieces._made) <= KEPT

    await asyncio.gather(*(load(*one, after) for one, after in zip(made, (0, 7), strict=True)))
    assert len(fleet.puts) > 10
    assert [host.memory for host in fleet.hosts] == [Path(weights["path"]).read_bytes()] * 2
    await closed(made)


async def test_of_the_next_version_only_what_has_changed_goes_to_nodes_that_have_the_one_before(
    tmp_path: Path, weights: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces_module, "PIECE_BYTES", 1000)
    fleet, states = Fleet(4, 4, 4), [os.urandom(2500)]
    for number in range(4):  # few words apart, with a piece that stays
        states.append(states[-1][: 300 + number] + b"new" + states[-1][303 + number :])
    states += [states[2], os.urandom(2500)]
    (site, life), late = made = await started(fleet, tmp_path)
    sent = []

    async def load(site: FarSite, life: ChildProcesses, version: int) -> None:
        info = {"path": weights["path"], "size": len(states[version])}
        async with site.brought(life, info, 0) as found:  # the number may come twice
            assert Path(found["path"]).read_bytes() == states[version]

    for version, state in enumerate(states):
        await asyncio.to_thread(Path(weights["path"]).write_bytes, state)
        await load(site, life, version)
        if version in (0, 1, 3):  # one that is two versions behind, and one that comes later than the others
            await load(*late, version)
        sent.append([sum(host.fills) for host in fleet.hosts])
        for host in fleet.hosts:
            host.fills.clear()
    small = pytest.approx(20, abs=10)
    assert sent == [[2500, 2500], [small, small], [small, 0], [small, 1000], [small, 0], [small, 0], [2500, 0]]
    assert len(fleet.pieces._read) == 3
    await closed(made)


async def test_a_node_whose_copy_is_not_what_it_says_gets_the_piece_whole_and_that_is_told(
    tmp_path: Path, weights: dict[str, Any]
) -> None:
    fleet, told = Fleet(4, 4, 4), list[str]()
    site, life = FarSite(fleet, Berths(CFG, fleet, told.append)), ChildProcesses("engine", EngineError, tmp_path)
    await site.start(life, "the engine process", "host", {}, seats(fleet)[0])
    fleet.hosts[0].pieces = Pieces(fleet._put)
    sent = Path(weights["path"])
    await asyncio.to_thread(sent.write_bytes, bytes(95))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces_module, "PIECE_BYTES", 40)
        async with site.brought(life, weights, 1) as found:
            with open(found["path"], "r+b") as memory:  # noqa: ASYNC230
                memory.write(b"?")
        await asyncio.to_thread(sent.write_bytes, bytes(10) + b"new" + bytes(82))
        async with site.brought(life, weights, 2) as found:
            assert Path(found["path"]).read_bytes() == sent.read_bytes()
    assert told == [
        "1 piece(s) of version 2 went whole to node n1: with what had changed they were other than here",
    ]
    await life.close()


async def test_a_node_that_takes_no_piece_as_it_is_ends_the_life(tmp_path: Path, weights: dict[str, Any]) -> None:
    fleet = Fleet(4, 4, 4)
    (site, life), _ = made = await started(fleet, tmp_path)
    fleet.hosts[0].damages = True
    with pytest.raises(EngineError, match="on node n1 is lost: weights come there other than they are"):
        async with site.brought(life, weights, 3):
            pass
    await closed(made)


async def test_weights_that_come_another_way_are_left_alone_and_a_node_that_is_lost_meanwhile_ends_the_life(
    tmp_path: Path, weights: dict[str, Any]
) -> None:
    fleet = Fleet(4, 4, 4)
    (site, life), _ = made = await started(fleet, tmp_path)
    async with site.brought(life, {"names": []}, 3) as found:
        assert found == {"names": []}
    fleet.hosts[0].lost = True
    with pytest.raises(EngineError, match="the engine on node n1 is lost: the actor died"):
        async with site.brought(life, weights, 3):
            pass
    await closed(made)


@pytest.mark.virtual
async def test_an_engine_does_not_wait_for_a_node_of_a_cluster_that_is_lost(tmp_path: Path) -> None:
    fleet = Fleet(4, 4, 4)
    first, _ = seats(fleet)

    async def lost() -> Sequence[str]:
        raise HeadLost("its head does not answer")

    fleet.alive = lost  # type: ignore[method-assign]
    with pytest.raises(HeadLost):
        await Berths(CFG, fleet, print).take(first)
    life = ChildProcesses("engine-0", EngineError, tmp_path)
    with pytest.raises(ClusterLost, match=r"the cluster is lost: its head does not answer; .* --resume"):
        await FarSite(fleet, Berths(CFG, fleet, print)).start(life, "the engine process", "host", {}, first)
    assert now() == 0.0


async def test_an_engine_on_a_node_ends_when_the_head_is_lost_and_nothing_watches_any_more(tmp_path: Path) -> None:
    fleet = Fleet(4, 4, 4)
    for loses in (True, False):
        site, life = FarSite(fleet, Berths(CFG, fleet, print)), ChildProcesses("engine-0", EngineError, tmp_path)
        peer = await site.start(life, "the engine process", "host", {}, seats(fleet)[0])
        if loses:
            fleet.head_lost.set()
            with pytest.raises(ClusterLost, match="the cluster is lost: its head does not answer"):
                await peer.call("add", 1, 1)
            fleet.head_lost.clear()
        await life.close()
        await peer.close()
        await asyncio.sleep(0.1)
        assert len(asyncio.all_tasks()) == 1


@pytest.mark.virtual
async def test_a_silent_head_is_waited_for() -> None:
    fleet = Fleet(4, 4, 4)
    first, _ = seats(fleet)
    until, alive = 30.0, fleet.alive

    async def unsure() -> Sequence[str]:
        if now() < until:
            raise NodeLost("the cluster's head does not answer") if now() < 15.0 else NodeSilent("no answer")
        return await alive()

    fleet.alive = unsure  # type: ignore[method-assign]
    assert await Berths(CFG, fleet, print).take(first) == first


@pytest.mark.virtual
async def test_weights_on_a_slow_network_take_long_and_end_no_engine(tmp_path: Path, weights: dict[str, Any]) -> None:
    fleet = Fleet(4, 4, 4)
    first, _ = seats(fleet)
    site, life = FarSite(fleet, Berths(CFG, fleet, print)), ChildProcesses("engine", EngineError, tmp_path)
    peer = await site.start(life, "the engine process", "host", {}, first)
    fleet.hosts[0].pieces = Ready()
    fleet.hosts[0].slow = 2 * GONE_S
    async with site.brought(life, weights, 3):
        assert now() > 5 * GONE_S
        assert fleet.hosts[0].fills == [10] * 9 + [5]
    life.fail("enough")
    await peer.close()


class Ready(Pieces):
    """Pieces that need no thread."""

    def __init__(self) -> None:
        super().__init__(lambda data: asyncio.sleep(0, data))

    async def _piece(self, key: Key, at: int) -> Piece:
        return Piece.after(None, b"x" * min(10, key[2] - at))
