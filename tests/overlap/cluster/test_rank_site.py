"""Learner ranks on nodes: where they go when a node is gone, and how weights and checkpoints come and go."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from fleets import Actor, Cluster, fleet_of

from overlap.cluster import files
from overlap.cluster.fleet import REST_S
from overlap.cluster.sites import RankSite
from overlap.config.fields import ClusterConfig, Config
from overlap.config.learn import LearnConfig
from overlap.config.rollout import RolloutConfig
from overlap.core.clock import now
from overlap.core.errors import ClusterLost, LearnerDiedError, LearnerError, RunDirError
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
        self.site, self.life = RankSite(self.fleet), ChildProcesses("learner", LearnerDiedError, folder)
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


@pytest.fixture
def state(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run" / "state"


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


def texts(folder: Path) -> dict[str, str]:
    return {name: (folder / name).read_text() for name, _ in files.files_in(folder)}


def write(folder: Path, *names: str) -> None:
    """Each with its name in it, five times."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name * 5)


@pytest.mark.parametrize("shared", [False, True])
async def test_what_ranks_write_on_nodes_is_gathered_here_and_sent_out_again_where_they_do_not_see_the_folder(
    ranks: Ranks, state: Path, shared: bool
) -> None:
    async with ranks:
        ranks.on("n1").thing.shares = shared
        async with ranks.site.saving(ranks.life, state) as (first, second):
            assert (first == state, second == state) == (shared, False)
            write(first, "learner.json", "a/rank_0")
            write(second, "a/rank_1")
            (second / "empty").touch()
        kept = texts(state)
        assert kept == {name: name * 5 for name in ("learner.json", "a/rank_0", "a/rank_1")} | {"empty": ""}
        assert [first.exists(), second.exists()] == [shared, False]
        async with ranks.site.loading(ranks.life, state, recut=False) as (first, second):
            assert texts(first) == texts(second) == kept
            assert (first == state) == shared
        assert [first.exists(), second.exists()] == [shared, False]
        assert [path.name for path in state.parent.iterdir()] == ["state"]


@pytest.mark.parametrize("recut", [True, False])
async def test_of_a_state_cut_for_these_ranks_each_node_gets_what_its_own_read(
    ranks: Ranks, state: Path, recut: bool
) -> None:
    names = {f"deepspeed/bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in range(2)}
    write(state, "learner.json", *names)
    async with ranks, ranks.site.loading(ranks.life, state, recut=recut) as folders:
        for rank, folder in enumerate(folders):
            own = names if recut else {name for name in names if f"pp_rank_{rank}_" in name}
            assert texts(folder).keys() == {"learner.json", *own}


async def test_a_full_disk_costs_a_checkpoint_and_no_rank_and_a_lost_node_the_learner(
    ranks: Ranks, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ranks:
        with monkeypatch.context() as patch:
            patch.setattr(files, "write_piece", lambda *args: "No space left on device")
            with pytest.raises(RunDirError, match=r"cannot write .*/state/file: No space left on device; free disk"):
                async with ranks.site.saving(ranks.life, state) as (first, _):
                    write(first, "file")
        assert not first.exists()
        write(state, "file")
        ranks.on("n2").thing.full = True
        with pytest.raises(RunDirError, match=r"cannot write .*/file on node n2: No space left on device; free"):
            async with ranks.site.loading(ranks.life, state, recut=False):
                pytest.fail("it was not sent")
        assert not ranks.life.over
        ranks.on("n2").lost = True
        with pytest.raises(LearnerDiedError, match="the learner on node n2 is lost: the actor died"):
            async with ranks.site.saving(ranks.life, state):
                pytest.fail("nobody knows what it sees")
