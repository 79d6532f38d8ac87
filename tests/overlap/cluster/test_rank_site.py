"""Learner ranks on nodes: where they go when a node is gone, and how weights and checkpoints come and go."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from fleets import Agent as FleetAgent
from fleets import Fleet as AgentFleet

from overlap.clock import now
from overlap.cluster import rank_site
from overlap.cluster.far_folder import FarFolder
from overlap.cluster.far_peer import ProcessAgent
from overlap.cluster.nodes import HeadLost, NodeLost
from overlap.cluster.rank_site import RankSite
from overlap.cluster.sites import REST_S, Berths
from overlap.config import ClusterConfig, Config, LearnConfig
from overlap.errors import LearnerDiedError, LearnerError, RunDirError
from overlap.placement import place_over
from overlap.process import ChildProcesses

CFG = Config(cluster=ClusterConfig("10.0.0.0:6379"), learn=LearnConfig(ranks=2))


class Agent(FleetAgent):
    """A host of a rank, with files of its own, and those of this machine where it ``shares`` them."""

    def __init__(self, name: str, closed: Callable[[bool], None], files: Path, shares: bool) -> None:
        super().__init__(name, closed)
        self.folder, self._shares, self.full = FarFolder(files), shares, False
        self.calls: list[str] = []
        self.sent = 0

    async def files(self, do: str, *args: Any) -> Any:
        self.calls.append(do)
        if self.lost:
            raise NodeLost("the actor died")
        if do == "sees" and not self._shares:
            return False
        if do == "write" and self.full:
            return "No space left on device"
        answer = getattr(self.folder, do)(*args)
        if do == "changed" and answer is not None:
            self.sent += len(answer[0])
            answer = (b"?" + answer[0][1:], *answer[1:]) if self.damages else answer
        return answer


class Fleet(AgentFleet):
    """Nodes that come and go; those in ``sharing`` see the files of this machine."""

    def __init__(self, folder: Path, count: int, gpus: int = 0) -> None:
        super().__init__()
        self._folder, self.sharing = folder, set[str]()
        self.nodes = {f"n{i}": self.node(i, 2, gpus if i else 0) for i in range(count)}

    def host(self, name: str, owner: str, closed: Callable[[bool], None]) -> ProcessAgent:
        self.hosts.append(Agent(name, closed, self._folder / f"disk-{name}", name in self.sharing))
        return self.hosts[-1]

    def agent(self, name: str) -> Agent:
        return next(host for host in self.hosts if host.name == name)


class Ranks:
    """A site over a fleet of ``count`` nodes, and a placement there; as a context, the ranks have been started."""

    def __init__(self, folder: Path, count: int = 3, gpus: int = 0) -> None:
        self.fleet, self.told = Fleet(folder, count, gpus), list[str]()
        self.berths = Berths(CFG, self.fleet, self.told.append)
        self.site = RankSite(self.fleet, self.berths, self.told.append)
        self.life = ChildProcesses("learner", LearnerDiedError, folder)
        self.placement = place_over(CFG, list(self.fleet.nodes.values()))

    async def seated(self) -> list[str]:
        """The nodes of the ranks."""
        return [seat.node for seat in (await self.site.seated(self.life, self.placement)).ranks]

    async def __aenter__(self) -> Ranks:
        await self.seated()
        self.peers = [
            await self.site.start(self.life, f"learner rank {seat.rank}", "rank", {"A": "1"}, seat)
            for seat in self.placement.ranks
        ]
        return self

    async def __aexit__(self, *exc_info: Any) -> None:
        await self.life.close()
        for peer in self.peers:
            await peer.close()
        await self.site.close()


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_site, "PIECE_BYTES", 10)


async def test_each_rank_starts_on_its_node(tmp_path: Path) -> None:
    async with Ranks(tmp_path) as ranks:
        assert [(host.name, host.environment) for host in ranks.fleet.hosts] == [("n1", {"A": "1"}), ("n2", {"A": "1"})]
    assert ranks.told == []


@pytest.mark.virtual
async def test_a_rank_whose_node_is_gone_moves_and_tells_of_it(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, 4)
    assert await ranks.seated() == ["n1", "n2"]
    del ranks.fleet.nodes["n1"]
    assert await ranks.seated() == ["n3", "n2"]
    del ranks.fleet.nodes["n3"], ranks.fleet.nodes["n2"]
    assert await ranks.seated() == ["", ""]
    assert ranks.told == [
        "learner rank 0 moves from node n1 to node n3",
        "learner rank 0 moves from node n1 to this machine",
        "learner rank 1 moves from node n2 to this machine",
    ]


@pytest.mark.virtual
async def test_a_node_that_was_silent_when_its_rank_was_to_end_is_left_alone_for_a_while(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, 4)
    ranks.berths.rest("n1")
    assert await ranks.seated() == ["n3", "n2"]
    await asyncio.sleep(REST_S + 1)
    assert await ranks.seated() == ["n1", "n2"]


@pytest.mark.virtual
async def test_ranks_for_which_there_is_no_gpu_any_more_end_the_run_in_a_line(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, 3, gpus=2)
    assert {seat.node for seat in ranks.placement.ranks} == {"n2"}
    del ranks.fleet.nodes["n2"]
    with pytest.raises(LearnerError, match="node n2 of learner ranks is gone, and no other has a GPU free") as caught:
        await ranks.seated()
    assert not isinstance(caught.value, LearnerDiedError)
    assert now() == pytest.approx(REST_S, abs=2.0)


@pytest.mark.virtual
async def test_a_cluster_that_is_lost_has_no_other_place_for_a_rank(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path)

    async def lost() -> Sequence[str]:
        raise HeadLost("its head does not answer")

    ranks.fleet.alive = lost  # type: ignore[method-assign]
    with pytest.raises(LearnerError, match="cannot be placed: its head does not answer") as caught:
        await ranks.seated()
    assert not isinstance(caught.value, LearnerDiedError)


@pytest.mark.virtual
async def test_an_engine_moves_to_no_gpu_of_a_rank(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, 3, gpus=2)
    (engine, *_) = ranks.placement.engines
    await ranks.seated()
    assert (engine.node, ranks.berths.ranks) == ("n1", {"n2"})
    del ranks.fleet.nodes["n1"]
    assert await ranks.berths._found(engine) is None
    ranks.berths.ranks = ()
    assert await ranks.berths._found(engine) is not None


@pytest.mark.virtual
async def test_a_rank_moves_to_no_gpu_of_an_engine_that_has_moved_itself(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, 4, gpus=2)
    (engine, *_) = ranks.placement.engines
    await ranks.seated()
    assert (engine.node, ranks.berths.ranks) == ("n1", {"n3"})
    assert await ranks.berths.take(engine) == engine
    del ranks.fleet.nodes["n1"]
    assert (await ranks.berths.take(engine)).node == "n2"
    del ranks.fleet.nodes["n3"]
    with pytest.raises(LearnerError, match="no other has a GPU free"):
        await ranks.seated()


async def test_of_the_weights_of_a_first_rank_on_a_node_what_has_changed_comes_into_memory_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_site, "PIECE_BYTES", 1000)
    memory, first = tmp_path / "memory", bytes(2500)
    states = [first, b"new" + first[3:], os.urandom(2500), first]
    async with Ranks(tmp_path) as ranks:
        agent, came = ranks.fleet.agent("n1"), []
        for version, data in enumerate([*states, first]):
            memory.write_bytes(data)
            info = {"path": str(memory), "size": 2500, "tensors": [["a", "float32", [3], 0]]}
            found = await ranks.site.brought(ranks.life, info, version)
            assert Path(found["path"]).read_bytes() == data
            assert {**found, "path": str(memory)} == info
            assert found["path"].startswith(f"/proc/{os.getpid()}/fd/")
            came.append(agent.sent)
            agent.sent = 0
        assert came == [2500, 14, 2500, 2500, 0]
        Path(found["path"]).write_bytes(first[:500] + b"?" + first[501:])
        memory.write_bytes(states[1])
        found = await ranks.site.brought(ranks.life, info, 5)
        assert Path(found["path"]).read_bytes() == states[1]
        assert ranks.told == [
            "a piece of version 5 comes whole from node n1: with what had changed they were other than here"
        ]
        assert await ranks.site.brought(ranks.life, {"init": {}}, 3) == {"init": {}}
        agent.damages = True
        memory.write_bytes(first)
        with pytest.raises(LearnerDiedError, match="weights come from node n1 other than they are there"):
            await ranks.site.brought(ranks.life, info, 6)
    assert "changed" not in ranks.fleet.agent("n2").calls


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def test_what_ranks_write_on_nodes_that_do_not_see_the_folder_is_gathered_here_and_sent_out_again(
    tmp_path: Path,
) -> None:
    state, kept = tmp_path / "run" / "state", {"learner.json": b"{}", "a/empty": b"", "a/rank_1": os.urandom(35)}
    state.parent.mkdir()
    async with Ranks(tmp_path) as ranks:
        async with ranks.site.saving(ranks.life, state) as (first, second):
            assert {first, second}.isdisjoint({state})
            assert first != second
            for folder, names in ((first, ["learner.json", "a/empty"]), (second, ["a/rank_1"])):
                for name in names:
                    (folder / name).parent.mkdir(exist_ok=True)
                    (folder / name).write_bytes(kept[name])
        assert files(state) == kept
        assert files(first) == files(second) == {}
        async with ranks.site.loading(ranks.life, state, recut=False) as (first, second):
            assert files(first) == files(second) == kept
        assert files(first) == files(second) == {}
        assert [path.name for path in state.parent.iterdir()] == ["state"]


@pytest.mark.parametrize("recut", [True, False])
async def test_of_a_state_cut_for_these_ranks_each_node_gets_what_its_own_read(tmp_path: Path, recut: bool) -> None:
    state = tmp_path / "state"
    names = {f"deepspeed/bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in range(2)}
    for name in ("learner.json", *names):
        (state / name).parent.mkdir(parents=True, exist_ok=True)
        (state / name).write_text(name)

    async with Ranks(tmp_path) as ranks, ranks.site.loading(ranks.life, state, recut=recut) as folders:
        for rank, folder in enumerate(folders):
            own = names if recut else {name for name in names if f"pp_rank_{rank}_" in name}
            assert files(folder).keys() == {"learner.json", *own}


async def test_a_folder_that_a_node_sees_is_written_and_read_there_itself(tmp_path: Path) -> None:
    state, ranks = tmp_path / "run" / "state", Ranks(tmp_path)
    ranks.fleet.sharing = {"n1"}
    state.parent.mkdir()
    async with ranks:
        async with ranks.site.saving(ranks.life, state) as (first, second):
            assert first == state
            (second / "of_two").write_text("2")
        assert files(state) == {"of_two": b"2"}
        async with ranks.site.loading(ranks.life, state, recut=False) as (first, second):
            assert (first, files(second)) == (state, {"of_two": b"2"})
        assert [path.name for path in state.parent.iterdir()] == ["state"]


async def test_a_full_disk_costs_a_checkpoint_and_no_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = tmp_path / "run" / "state"

    def full(path: Path, at: int, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    state.parent.mkdir()
    async with Ranks(tmp_path) as ranks:
        with monkeypatch.context() as patch:
            patch.setattr(rank_site, "write_piece", full)
            with pytest.raises(RunDirError, match=r"cannot write .*/state/file: No space left on device"):
                async with ranks.site.saving(ranks.life, state) as (first, _):
                    (first / "file").write_text("1")
        assert files(first) == {}
        state.mkdir()
        (state / "file").write_text("1")
        ranks.fleet.agent("n2").full = True
        with pytest.raises(
            RunDirError, match="cannot write file on node n2: No space left on device; free space there"
        ):
            async with ranks.site.loading(ranks.life, state, recut=False):
                pytest.fail("it was not sent")
        assert not ranks.life.over


async def test_a_node_that_is_lost_meanwhile_ends_the_learner_that_may_begin_again(tmp_path: Path) -> None:
    async with Ranks(tmp_path) as ranks:
        ranks.fleet.agent("n2").lost = True
        with pytest.raises(LearnerDiedError, match="the learner on node n2 is lost: the actor died"):
            async with ranks.site.saving(ranks.life, tmp_path / "state"):
                pytest.fail("nobody knows what it sees")
        assert ranks.life.over


def test_a_far_folder_has_what_was_put_there_and_says_what_is_missing(tmp_path: Path) -> None:
    folder = FarFolder(tmp_path / "files")
    folder.clear()
    assert folder.write("a/b", 3, b"def") == folder.write("a/b", 0, b"abc") == ""
    assert (folder.names(), folder.read("a/b", 2, 3)) == ([("a/b", 6)], b"cde")
    with pytest.raises(OSError, match=r"a/b ends at byte 6, not behind 9"):
        folder.read("a/b", 4, 5)
    assert folder.write("a/b/c", 0, b"1") == "File exists"
    (tmp_path / "token").write_text("words")
    seen = [name for name in ("token", "files/a/b", "nothing") if folder.sees(str(tmp_path / name), "words")]
    assert seen == ["token"]
