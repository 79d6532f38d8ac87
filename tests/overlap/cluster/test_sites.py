"""Engines on nodes: what ends them, and how weights come to them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fleets import Cluster, Still, fleet_of, seats

from overlap.cluster.fleet import GONE_S, REST_S
from overlap.cluster.sites import FarSite
from overlap.core.clock import now
from overlap.core.errors import ClusterLost, EngineError
from overlap.process.calls import Peer
from overlap.process.child_processes import ChildProcesses
from overlap.weights import copies
from overlap.weights import pieces as weight_pieces
from overlap.weights.copies import Piece
from overlap.weights.pieces import KEPT, Key


class Engines:
    """Engines over the nodes of a cluster; as a context, they have been started."""

    def __init__(self, folder: Path) -> None:
        self.cluster = Cluster(4, 4, 4)
        self.fleet, self.seats, self._folder = fleet_of(self.cluster), seats(self.cluster), folder

    async def start(self, number: int = 0, *policies: Path) -> tuple[FarSite, ChildProcesses, Peer]:
        site, self.life = FarSite(self.fleet, *policies), ChildProcesses(f"engine-{number}", EngineError, self._folder)
        peer = await site.start(self.life, "the engine process", "host", {"A": "1"}, self.seats[number])
        return site, self.life, peer

    @asynccontextmanager
    async def started(self) -> AsyncIterator[list[tuple[FarSite, ChildProcesses]]]:
        made = [await self.start(number) for number in range(2)]
        yield [(site, life) for site, life, _ in made]
        for _, life, peer in made:
            life.fail("enough")
            await peer.close()
        assert ([actor.ends for actor in self.cluster.actors], self.cluster.users) == ([1, 1], 0)


@pytest.fixture
def engines(tmp_path: Path) -> Engines:
    return Engines(tmp_path)


@pytest.mark.virtual
async def test_a_node_that_was_silent_at_the_end_of_its_engine_rests_until_that_has_ended(engines: Engines) -> None:
    (_, life, peer), (first, second), cluster = await engines.start(), engines.seats, engines.cluster
    (actor,) = cluster.actors
    assert (actor.node, actor.thing.environment) == (first.node, {"A": "1", **first.environment})
    actor.sure = False
    life.fail("silent")
    await peer.close()
    del cluster.nodes[second.node]
    began = now()
    assert await engines.fleet.take(first) == first
    assert (now() - began, cluster.users) == (pytest.approx(REST_S, abs=2.0), 0)


@pytest.mark.virtual
async def test_an_engine_without_a_node_ends_its_life(engines: Engines) -> None:
    engines.cluster.nodes.clear()
    with pytest.raises(EngineError, match="the engine process cannot be started: no node had room"):
        await engines.start()
    starts = asyncio.create_task(engines.start())
    await asyncio.sleep(5.0)
    engines.life.fail("it is no longer wanted")
    with pytest.raises(EngineError, match="no longer wanted"):
        await starts
    engines.cluster.head_lost.set()
    with pytest.raises(ClusterLost, match=r"the cluster is lost: its head does not answer; .* --resume"):
        await engines.start()
    assert engines.cluster.users == 0


@pytest.mark.parametrize("there", ["none", "other"])
async def test_an_engine_starts_on_no_node_that_has_another_policy(
    engines: Engines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: str
) -> None:
    for name in ("policy", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(name)
    run = Still.run
    monkeypatch.setattr(Still, "run", lambda self, do, path, digest: run(self, do, tmp_path / there, digest))
    with pytest.raises(EngineError, match=r"on node n1: the policy .* is not there, or has other files: put the same"):
        await engines.start(0, tmp_path / "policy")


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(copies, "PIECE_BYTES", 10)
    (tmp_path / "weights").write_bytes(os.urandom(95))
    return {"path": str(tmp_path / "weights"), "size": 95, "tensors": []}


@pytest.mark.parametrize("behind", [False, True])
async def test_weights_are_put_once_for_all_nodes_and_again_for_one_far_behind_and_few_are_held(
    engines: Engines, weights: dict[str, Any], monkeypatch: pytest.MonkeyPatch, behind: bool
) -> None:
    sent, cluster, kept = Path(weights["path"]).read_bytes(), engines.cluster, KEPT if behind else 10
    monkeypatch.setattr(weight_pieces, "KEPT", kept)

    async def load(site: FarSite, life: ChildProcesses, after: int) -> None:
        while len(cluster.puts) < after:  # noqa: ASYNC110
            await asyncio.sleep(0)
        async with site.brought(life, weights, 3) as found:
            assert len(cluster.pieces._made) <= kept
            assert Path(found["path"]).read_bytes() == sent
            assert {**found, "path": weights["path"]} == weights

    async with engines.started() as made:
        await asyncio.gather(*(load(*one, after) for one, after in zip(made, (0, 7 * behind), strict=True)))
        assert (len(cluster.puts) > 10, sorted(cluster.puts) == [5] + [10] * 9) == (behind, not behind)
        assert not cluster.pieces._made
        async with made[0][0].brought(made[0][1], {"names": []}, 3) as found:
            assert found == {"names": []}


async def test_of_the_next_version_only_what_has_changed_goes_to_nodes_that_have_the_one_before(
    engines: Engines, weights: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "PIECE_BYTES", 1000)
    states, sent = [os.urandom(2500)], []
    for number in range(4):  # few words apart, with a piece that stays
        states.append(states[-1][: 300 + number] + b"new" + states[-1][303 + number :])
    states += [states[2], os.urandom(2500)]

    async def load(site: FarSite, life: ChildProcesses, version: int) -> None:
        info = {"path": weights["path"], "size": len(states[version])}
        async with site.brought(life, info, 0) as found:  # the number may come twice
            assert Path(found["path"]).read_bytes() == states[version]

    async with engines.started() as (first, late):
        for version, state in enumerate(states):
            await asyncio.to_thread(Path(weights["path"]).write_bytes, state)
            await load(*first, version)
            if version in (0, 1, 3):  # one that is two versions behind, and one that comes later than the others
                await load(*late, version)
            sent.append([actor.thing.sent for actor in engines.cluster.actors])
            for actor in engines.cluster.actors:
                actor.thing.sent = 0
    small = pytest.approx(20, abs=10)
    assert sent == [[2500, 2500], [small, small], [small, 0], [small, 1000], [small, 0], [small, 0], [2500, 0]]
    assert len(engines.cluster.pieces._read) == 3


async def test_a_node_whose_copy_is_not_what_it_says_gets_the_piece_whole_and_one_that_takes_none_ends_the_life(
    engines: Engines, weights: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "PIECE_BYTES", 40)
    told: list[str] = []
    monkeypatch.setattr(engines.fleet, "tell", told.append)
    sent = Path(weights["path"])
    async with engines.started() as ((site, life), (other, its_life)):
        await asyncio.to_thread(sent.write_bytes, bytes(95))
        async with site.brought(life, weights, 1) as found:
            with open(found["path"], "r+b") as memory:  # noqa: ASYNC230
                memory.write(b"?")
        await asyncio.to_thread(sent.write_bytes, bytes(10) + b"new" + bytes(82))
        async with site.brought(life, weights, 2) as found:
            assert Path(found["path"]).read_bytes() == sent.read_bytes()
        assert told == [
            "1 piece(s) of version 2 went whole to node n1: with what had changed they were other than here"
        ]
        engines.cluster.actors[1].thing.damages = True
        with pytest.raises(EngineError, match=r"on node n2 is lost: .*weights come other than they were sent"):
            async with other.brought(its_life, weights, 3):
                pytest.fail("they did not come")
        engines.cluster.actors[0].lost = True
        with pytest.raises(EngineError, match="the engine-0 on node n1 is lost: the actor died"):
            async with site.brought(life, weights, 5):
                pytest.fail("they did not come")


@pytest.mark.virtual
async def test_weights_on_a_slow_network_take_long_and_end_no_engine(
    engines: Engines, weights: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def piece(key: Key, at: int, length: int) -> Piece:  # needs no thread
        return Piece.after(None, b"x" * length)

    async def fill(*asked: Any) -> bool:
        await asyncio.sleep(2 * GONE_S)
        return True

    async with engines.started() as ((site, life), _):
        monkeypatch.setattr(engines.cluster.pieces, "_piece", piece)
        monkeypatch.setattr(engines.cluster.actors[0].thing, "fill", fill)
        async with site.brought(life, weights, 3):
            assert now() > 5 * GONE_S


async def test_an_engine_on_a_node_ends_when_the_head_is_lost_and_nothing_watches_any_more(engines: Engines) -> None:
    for loses in (True, False):
        _, life, peer = await engines.start()
        if loses:
            engines.cluster.head_lost.set()
            with pytest.raises(ClusterLost, match="the cluster is lost: its head does not answer"):
                await peer.call("add", 1, 1)
            engines.cluster.head_lost.clear()
        await life.close()
        await peer.close()
        await asyncio.sleep(0.1)
        assert len(asyncio.all_tasks()) == 1
