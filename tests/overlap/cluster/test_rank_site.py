"""Learner ranks on nodes: where they go when a node is gone, and how weights come."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from fleets import Actor, Cluster, fleet_of

from overlap.cluster.fleet import REST_S
from overlap.cluster.sites import RankSite
from overlap.config.fields import ClusterConfig, Config
from overlap.config.learn import LearnConfig
from overlap.config.rollout import RolloutConfig
from overlap.core.clock import now
from overlap.core.errors import ClusterLost, ConfigError, LearnerDiedError, LearnerError
from overlap.placement.node_seats import place_over
from overlap.process.calls import Peer
from overlap.process.child_processes import ChildProcesses
from overlap.weights import copies

CFG = Config(cluster=ClusterConfig("10.0.0.0:6379"), learn=LearnConfig(ranks=2), rollout=RolloutConfig(replicas=1))


class Ranks:
    """A site over ``count`` nodes, and a placement there; as a context, the ranks have been started."""

    def __init__(self, folder: Path, count: int = 3, gpus: int = 0) -> None:
        self.cluster, self.told = Cluster(*[2] * count, gpus=gpus), list[str]()
        self.fleet, self.nodes = fleet_of(self.cluster, CFG, self.told.append), self.cluster.nodes
        self.site, self.life = RankSite(self.fleet, folder), ChildProcesses("learner", LearnerDiedError, folder)
        self.placement, self.peers = place_over(CFG, list(self.nodes.values())), list[Peer]()

    async def seated(self) -> list[str]:
        """The nodes of the ranks."""
        return [seat.node for seat in (await self.site.seated(self.life, self.placement)).ranks]

    def on(self, node: str) -> Actor:
        return next(actor for actor in self.cluster.actors if actor.node == node)

    async def __aenter__(self) -> Ranks:
        await self.seated()
        for seat in self.placement.ranks:
            self.peers.append(await self.site.start(self.life, f"rank {seat.rank}", "rank", {"A": "1"}, seat))
            assert self.on(seat.node).thing.environment == {"A": "1"}
        return self

    async def __aexit__(self, *exc_info: Any) -> None:
        await self.life.close()
        for peer in self.peers:
            await peer.close()
        await self.site.close()
        assert self.cluster.users == 0


@pytest.fixture
def ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ranks:
    monkeypatch.setattr(copies, "PIECE_BYTES", 10)
    return Ranks(tmp_path)


@pytest.mark.promise("cluster-parts")
@pytest.mark.virtual
async def test_a_rank_whose_node_is_gone_moves_and_tells_of_it(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, 4)
    assert await ranks.seated() == ["n1", "n2"]
    ranks.fleet.rest("n1")
    assert await ranks.seated() == ["n3", "n2"]
    await asyncio.sleep(REST_S + 1)
    assert await ranks.seated() == ["n1", "n2"]
    del ranks.nodes["n1"], ranks.nodes["n3"], ranks.nodes["n2"]
    assert await ranks.seated() == ["", ""]
    assert ranks.told == [
        "learner rank 0 moves from node n1 to node n3",
        "learner rank 0 moves from node n1 to this machine",
        "learner rank 1 moves from node n2 to this machine",
    ]
    ranks.cluster.head_lost.set()
    with pytest.raises(ClusterLost, match="the cluster is lost: its head does not answer") as caught:
        await ranks.seated()
    assert isinstance(caught.value, LearnerError)
    assert not isinstance(caught.value, LearnerDiedError)


@pytest.mark.virtual
async def test_an_engine_moves_to_no_gpu_of_a_rank_and_ranks_that_find_none_of_their_own_end_the_run_in_a_line(
    tmp_path: Path,
) -> None:
    ranks = Ranks(tmp_path, 4, gpus=2)
    (engine, *_), fleet, nodes = ranks.placement.engines, ranks.fleet, ranks.nodes
    await ranks.seated()
    assert (engine.node, fleet.ranks) == ("n1", {"n3"})
    assert await fleet.take(engine) == engine
    del nodes["n1"]
    kept = nodes.pop("n2")
    assert await fleet._found(engine) is None
    nodes["n2"] = kept
    assert (await fleet.take(engine)).node == "n2"
    del nodes["n3"]
    began = now()
    with pytest.raises(LearnerError, match="node n3 of learner ranks is gone, and no other has a GPU free") as caught:
        await ranks.seated()
    assert not isinstance(caught.value, LearnerDiedError)
    assert now() - began == pytest.approx(REST_S, abs=2.0)


async def test_of_the_weights_of_a_first_rank_on_a_node_what_has_changed_comes_into_memory_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "PIECE_BYTES", 1000)
    memory, first = tmp_path / "memory", b"old" + os.urandom(2497)
    states = [first, b"new" + first[3:], os.urandom(2500), first, first]
    info = {"path": str(memory), "size": 2500, "tensors": [["a", "float32", [3], 0]]}
    async with Ranks(tmp_path) as ranks:
        hosted, came = ranks.on("n1").thing, []
        for version, data in enumerate(states):
            memory.write_bytes(data)
            found = await ranks.site.brought(ranks.life, info, version)
            assert Path(found["path"]).read_bytes() == data
            assert {**found, "path": str(memory)} == info
            assert found["path"].startswith(f"/proc/{os.getpid()}/fd/")
            came.append(hosted.sent)
            hosted.sent = 0
        assert came == [2500, 14, 2500, 2500, 0]
        Path(found["path"]).write_bytes(first[:500] + bytes([first[500] ^ 1]) + first[501:])
        memory.write_bytes(states[1])
        found = await ranks.site.brought(ranks.life, info, 5)
        assert Path(found["path"]).read_bytes() == states[1]
        told = "a piece of version 5 comes whole from node n1: with what had changed they were other than here"
        assert ranks.told == [told]
        assert await ranks.site.brought(ranks.life, {"init": {}}, 3) == {"init": {}}
        hosted.damages = True
        memory.write_bytes(first)
        with pytest.raises(LearnerDiedError, match="weights come from node n1 other than they are there"):
            await ranks.site.brought(ranks.life, info, 6)
    assert ranks.on("n2").thing.sent == 0


async def test_a_node_of_a_rank_that_does_not_see_the_run_directory_is_refused(ranks: Ranks) -> None:
    ranks.cluster.shares = False
    with pytest.raises(ConfigError, match=r"run.dir='.*': node n1 of rank 0 does not see it, or cannot write there"):
        await ranks.__aenter__()
    await ranks.__aexit__()
