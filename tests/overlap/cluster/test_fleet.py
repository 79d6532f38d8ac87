"""A process on a node, called as one on this machine: what is said, and what ends it; and which node an engine gets
when its own is gone.
"""

from __future__ import annotations

import asyncio
import os
import random
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import AsyncMock

import pytest
from fleets import CFG, Cluster, fleet_of, seats
from places import ROOT, SUPPORT

from overlap.cluster import fleet as fleet_module
from overlap.cluster.agent import CALL_BYTES
from overlap.cluster.fleet import GONE_S, NODE_S, FarProcess, survey
from overlap.cluster.nodes import BEAT_S, HeadLost, NodeLost
from overlap.core.clock import now
from overlap.core.errors import ConfigError, EngineError
from overlap.placement.devices import NodeDevices
from overlap.process.calls import Peer, RemoteFault
from overlap.process.child_processes import ChildProcesses

FOUND = {"PYTHONPATH": f"{ROOT}{os.pathsep}{SUPPORT}"}


@pytest.fixture
def life(tmp_path: Path) -> ChildProcesses:
    return ChildProcesses("engine", EngineError, tmp_path / "scratch", tmp_path / "log")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "node").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "node"))
    monkeypatch.setattr(fleet_module, "PACE_S", 0.001)


@asynccontextmanager
async def started(life: ChildProcesses, cluster: Cluster | None = None) -> AsyncIterator[Peer]:
    """A process on this machine, as if it was another one; or one of ``cluster``, which need not be real."""
    cluster = cluster or Cluster(4, 4, 4, real=True)
    fleet = fleet_of(cluster)
    await fleet.living()
    try:
        peer = await FarProcess(fleet, "n1", life, ()).start("the engine process", "far_child", FOUND)
        try:
            yield peer
        finally:
            life.fail("it is no longer wanted")
            await peer.close()
    finally:
        assert ([actor.ends for actor in cluster.actors], cluster.users) == ([1], 0)
        assert not any(Path(tempfile.gettempdir()).glob("*"))


async def test_calls_go_there_and_replies_and_errors_come_back(life: ChildProcesses) -> None:
    async with started(life, cluster := Cluster(4, 4, 4, real=True)) as peer:
        assert await asyncio.gather(*(peer.call("add", i, 1) for i in range(20))) == list(range(1, 21))
        with pytest.raises(RemoteFault, match=r"TypeError: "):
            await peer.call("add", "a", 1)
        hangs = asyncio.create_task(peer.call("hang"))
        await peer.call("add", 0, 0)
        hangs.cancel()
        await asyncio.gather(hangs, return_exceptions=True)
        sent = random.Random(1).randbytes(2 * CALL_BYTES + 17)
        assert await peer.call("echo", sent) == sent
        for i in range(50):
            assert await peer.call("add", i, 1) == i + 1
            await asyncio.sleep(i % 3 / 1000)
        exchange = cluster.actors[0].thing.exchange = AsyncMock(wraps=cluster.actors[0].thing.exchange)
        await asyncio.sleep(0.2)
        assert exchange.call_count <= 3  # it is not asked again and again while there is nothing to say
        state = await peer.call("state")
        assert [state[name] for name in ("served", "taken_back", "parent")] == [75, True, os.getpid()]
        fd = os.pidfd_open(state["pid"])
        life.fail("another rank died")
        ended = asyncio.to_thread(os.waitid, os.P_PIDFD, fd, os.WEXITED | os.WNOWAIT)
        assert await ended is not None
        os.close(fd)


@pytest.mark.parametrize(
    ("call", "words", "cause"),
    [
        ("die", "RuntimeError: out of memory\n", r"on node n1 .* was killed by signal 9 .*log: RuntimeError: out"),
        ("give_up", "rank 3 raised", "^rank 3 raised$"),
    ],
)
async def test_a_death_is_told_with_its_node_and_the_last_error_that_was_printed_or_by_what_the_process_said_of_it(
    life: ChildProcesses, call: str, words: str, cause: str
) -> None:
    async with started(life) as peer:
        with pytest.raises(EngineError, match=cause):
            await peer.call(call, words)


@pytest.mark.virtual
async def test_a_node_that_is_silent_for_long_ends_the_life_and_one_that_speaks_again_does_not(
    life: ChildProcesses,
) -> None:
    async def exchange(data: bytes, wait_s: float) -> tuple[bytes, bytes, str]:
        if frozen < now():
            await asyncio.sleep(thaws - now())
        await asyncio.sleep(BEAT_S)
        return b"", b"", ""

    frozen = thaws = 1000.0
    async with started(life, cluster := Cluster(4, 4, 4)) as peer:
        cluster.actors[0].thing.exchange = exchange
        frozen, thaws = 20.0, 20.0 + GONE_S - 2 * BEAT_S - 1
        await asyncio.sleep(thaws)
        frozen = 60.0
        await asyncio.sleep(60.0 - now())
        assert not life.over
        thaws = 1000.0
        with pytest.raises(EngineError, match=r"on node n1 is lost: no answer within 10 s"):
            await peer.call("add", 1, 1)
        assert GONE_S - 0.1 <= now() - 60.0 <= GONE_S + BEAT_S + 0.1
        assert cluster.actors[0].thing._some.is_set()  # it was told at once that there is a call
        await peer._writer.wait_closed()
        assert cluster.actors[0].ends == 1


async def test_a_process_that_cannot_be_started_there_ends_the_life(life: ChildProcesses, tmp_path: Path) -> None:
    (tmp_path / "node").rmdir()
    with pytest.raises(EngineError, match=r"the engine process cannot be started on node n1: .*TMPDIR="):
        async with started(life):
            pass
    assert life.over


@pytest.mark.promise("cluster-parts")
@pytest.mark.virtual
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


@pytest.mark.virtual
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


@pytest.mark.virtual
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


@pytest.mark.virtual
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
