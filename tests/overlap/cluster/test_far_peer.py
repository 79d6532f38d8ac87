"""A process on a node, called as one on this machine: what is said, and what ends it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from fleets import Agent as FleetAgent
from places import ROOT, SUPPORT

from overlap.clock import now
from overlap.cluster import far_peer
from overlap.cluster.far_peer import GONE_S, start_far
from overlap.cluster.hosted import PIECE, Delivery, Hosted
from overlap.cluster.nodes import BEAT_S, NodeLost
from overlap.errors import EngineError
from overlap.process import ChildProcesses, Peer, RemoteFault
from overlap.weights.copies import piece_digest

FOUND = {"PYTHONPATH": f"{ROOT}{os.pathsep}{SUPPORT}"}


class Node(Hosted):
    """An agent on this machine."""

    name = "10.0.0.2-abc"

    def __init__(self) -> None:
        super().__init__("engine")
        self.closed = 0

    def nudge(self) -> None:  # type: ignore[override]
        self._some.set()

    async def bring(self, update: int, path: str, version: int, size: int) -> str:
        raise NotImplementedError

    async def close(self) -> bool:  # type: ignore[override]
        self.closed += 1
        await super().close()
        return True


class Silent(FleetAgent):
    """A node without a process; ``says`` makes the answer to every call."""

    def __init__(self, says: Callable[[], Awaitable[Delivery]]) -> None:
        super().__init__("10.0.0.3-def")
        self.says, self.closed_at = says, 0.0

    async def exchange(self, data: bytes, log: int, wait_s: float) -> Delivery:
        return await self.says()

    async def close(self) -> bool:
        self.closed_at = now()
        return False


@pytest.fixture
def life(tmp_path: Path) -> ChildProcesses:
    return ChildProcesses("engine", EngineError, tmp_path / "scratch", tmp_path / "log")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "node").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "node"))
    monkeypatch.setattr(far_peer, "PACE_S", 0.001)


@asynccontextmanager
async def started(node: Node, life: ChildProcesses) -> AsyncIterator[Peer]:
    async with asyncio.timeout(60):
        peer = await start_far(node, life, "the engine process", "far_child", FOUND)
        try:
            yield peer
        finally:
            await life.close()
            await peer.close()
    assert node.closed == 1


async def test_calls_go_there_and_replies_and_errors_come_back(life: ChildProcesses, tmp_path: Path) -> None:
    async with started(Node(), life) as peer:
        assert await asyncio.gather(*(peer.call("add", i, 1) for i in range(20))) == list(range(1, 21))
        with pytest.raises(RemoteFault, match=r"ValueError: no"):
            await peer.call("refuse")
        hangs = asyncio.create_task(peer.call("hang"))
        await peer.call("add", 0, 0)
        hangs.cancel()
        await asyncio.gather(hangs, return_exceptions=True)
        assert await peer.call("taken_back")
        assert await peer.call("parent") == os.getpid()
    assert list((tmp_path / "node").iterdir()) == []


async def test_a_message_larger_than_a_call_goes_there_and_back(life: ChildProcesses) -> None:
    sent = random.Random(1).randbytes(2 * PIECE + 17)
    async with started(Node(), life) as peer:
        assert await peer.call("echo", sent) == sent


async def test_every_call_is_served_once_whenever_it_comes(life: ChildProcesses) -> None:
    async with started(Node(), life) as peer:
        for i in range(50):
            assert await peer.call("add", i, 1) == i + 1
            await asyncio.sleep(i % 3 / 1000)
        assert await peer.call("served") == 51


async def test_the_death_of_the_process_is_told_with_its_node_and_the_last_error_it_printed(
    life: ChildProcesses, tmp_path: Path
) -> None:
    async with started(Node(), life) as peer:
        with pytest.raises(EngineError, match=r"process .* on node 10\.0\.0\.2-abc was killed by signal 9"):
            await peer.call("die", "RuntimeError: out of memory\n")
        with pytest.raises(EngineError, match=r"log: RuntimeError: out of memory"):
            life.check()
    assert "out of memory" in (tmp_path / "log").read_text()


async def test_what_a_process_says_before_it_ends_is_the_cause(life: ChildProcesses) -> None:
    async with started(Node(), life) as peer:
        with pytest.raises(EngineError, match=r"rank 3 raised"):
            await peer.call("give_up", "rank 3 raised")


async def test_the_end_of_the_life_ends_the_process_there_and_nothing_is_left(
    life: ChildProcesses, tmp_path: Path
) -> None:
    node = Node()
    async with started(node, life) as peer:
        pid = await peer.call("pid")
        fd = os.pidfd_open(pid)
        life.fail("another rank died")
        await asyncio.get_running_loop().run_in_executor(None, _ended, fd)
        os.close(fd)
    assert list((tmp_path / "node").iterdir()) == []


def _ended(fd: int) -> None:
    assert os.waitid(os.P_PIDFD, fd, os.WEXITED | os.WNOWAIT) is not None


async def test_an_agent_that_is_gone_ends_the_life(life: ChildProcesses) -> None:
    async def gone() -> Delivery:
        raise NodeLost("the actor died")

    node = Silent(gone)
    peer = await start_far(node, life, "the engine process", "far_child", FOUND)
    with pytest.raises(EngineError, match=r"the engine on node 10\.0\.0\.3-def is lost: the actor died"):
        await peer.call("add", 1, 1)
    await peer.close()
    await life.close()


@pytest.mark.virtual
async def test_a_node_that_is_silent_for_long_ends_the_life_and_one_that_speaks_again_does_not(
    life: ChildProcesses,
) -> None:
    async def says() -> Delivery:
        if frozen < now():
            await asyncio.sleep(thaws - now())
        await asyncio.sleep(BEAT_S)
        return Delivery()

    frozen = thaws = 1000.0
    node = Silent(says)
    peer = await start_far(node, life, "the engine process", "far_child", FOUND)
    frozen, thaws = 20.0, 20.0 + GONE_S - 2 * BEAT_S - 1
    await asyncio.sleep(thaws)
    frozen = 60.0
    await asyncio.sleep(60.0 - now())
    assert not life.over
    thaws = 1000.0
    with pytest.raises(EngineError, match=r"on node 10\.0\.0\.3-def is lost: no answer within 10 s"):
        await peer.call("add", 1, 1)
    assert GONE_S - 0.1 <= now() - 60.0 <= GONE_S + BEAT_S + 0.1
    await peer.close()
    assert node.closed_at == pytest.approx(now())


async def test_a_process_that_cannot_be_started_there_ends_the_life(life: ChildProcesses, tmp_path: Path) -> None:
    (tmp_path / "node").rmdir()
    node = Node()
    with pytest.raises(EngineError, match=r"the engine process cannot be started on node 10\.0\.0\.2-abc: TMPDIR="):
        await start_far(node, life, "the engine process", "far_child", FOUND)
    assert node.closed == 1
    await life.close()


async def fill(hosted: Hosted, update: int, at: int, data: bytes) -> bool:
    return await hosted.fill(update, at, len(data), data, piece_digest(data), True)


async def test_weights_are_written_into_memory_without_a_name_which_stays_for_the_next_of_that_size() -> None:
    hosted = Hosted("engine")
    path, lies_there = await hosted.room(1, 10)
    assert lies_there == {}
    assert await fill(hosted, 1, 0, b"hello")
    assert await fill(hosted, 1, 5, b"world")
    assert Path(path).read_bytes() == b"helloworld"
    assert "memfd" in os.readlink(path)
    assert await hosted.room(2, 10) == (path, {0: piece_digest(b"hello"), 5: piece_digest(b"world")})
    assert (await hosted.room(3, 3))[1] == {}
    await hosted.close()
    with contextlib.suppress(FileNotFoundError):
        assert "memfd" not in os.readlink(path)


async def test_a_call_for_an_earlier_update_of_the_weights_that_comes_late_changes_nothing() -> None:
    hosted = Hosted("engine")
    await hosted.room(1, 5)
    path, _ = await hosted.room(2, 5)
    assert await fill(hosted, 2, 0, b"newer")
    assert await hosted.room(1, 4) == ("", {})
    assert not await fill(hosted, 1, 0, b"older")
    assert Path(path).read_bytes() == b"newer"
    await hosted.close()
    assert not await fill(hosted, 2, 0, b"after")
