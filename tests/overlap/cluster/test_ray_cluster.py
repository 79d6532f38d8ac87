"""A cluster is joined and left at any moment, its head is silent, and the process that Ray lives in dies. That process
is a double, but where it says who is let in.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest
from places import ROOT, SUPPORT
from pooling import until
from ray import _raylet, exceptions
from ray_stub import done

from overlap.cluster import access, ray_cluster, ray_process
from overlap.cluster.access import AUTH, HEALTH, NodeState, token_path
from overlap.cluster.by_hand import write_node_state
from overlap.cluster.nodes import HeadLost, NodeLost
from overlap.cluster.ray_cluster import RayCluster
from overlap.core.errors import ConfigError

ADDRESS = "10.0.0.1:6379"


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What is done with the process goes there."""
    monkeypatch.setattr(ray_cluster, "MODULE", "ray_stub")
    monkeypatch.setattr(ray_cluster, "check_address", lambda *where: None)
    monkeypatch.setenv("RAY_STUB_DONE", str(tmp_path / "done"))
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{SUPPORT}")
    return tmp_path / "done"


def test_the_last_one_that_leaves_ends_the_connection_and_it_can_be_joined_again_in_another_loop(log: Path) -> None:
    joined = RayCluster(ADDRESS)

    async def main() -> None:
        before = done(log)
        async with joined:
            async with joined:
                assert [place.name for place in await joined.look()] == ["10.0.0.1-me", "10.0.0.2-b"]
            assert done(log) == [*before, "join"]
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())
    asyncio.run(main())  # a run asks the nodes in one, and trains in another
    assert done(log) == ["join", "leave"] * 2


async def test_one_that_is_left_while_it_is_joined_is_ended(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "LEAVE_S", 0.2)
    joined = RayCluster("hangs:1")
    enters = asyncio.create_task(joined.__aenter__())
    await until(lambda: done(log) == ["join"])
    enters.cancel()
    await asyncio.wait([enters])
    assert len(asyncio.all_tasks()) == 1


async def test_a_head_that_never_lets_us_in_is_told_in_time(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "asks for another token" in await why_not("refuses:1")
    monkeypatch.setattr(ray_cluster, "JOIN_S", 2.0)
    monkeypatch.setattr(ray_cluster, "LEAVE_S", 0.2)
    assert "cannot be joined (no answer within 2 s): see `overlap cluster status" in await why_not("hangs:1")


async def test_who_is_cancelled_while_he_leaves_has_left(log: Path) -> None:
    joined = RayCluster(ADDRESS)
    await joined.__aenter__()
    leaves = asyncio.create_task(joined.__aexit__())
    await asyncio.sleep(0)
    leaves.cancel()
    await asyncio.wait([leaves])
    await until(lambda: done(log) == ["join", "leave"])
    await until(lambda: len(asyncio.all_tasks()) == 1)


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("silent:1", r"its head at silent:1 does not answer \(no answer within 3 s\)"),
        ("cut:1", "Ray on this machine has ended, or was cut off from the head"),
        ("dies:1", r"Ray on this machine has ended \(Ray's process .* exited with code 1"),
    ],
)
async def test_a_head_or_a_ray_that_is_gone_is_told_to_whoever_asks_and_whoever_waits_for_an_actor(
    log: Path, monkeypatch: pytest.MonkeyPatch, how: str, why: str
) -> None:
    assert float(HEALTH["RAY_gcs_rpc_server_reconnect_timeout_s"]) > 1.5 * ray_cluster.LOOKING_S
    monkeypatch.setattr(ray_cluster, "LOOKING_S", 3.0)  # more than a cause may take to turn up
    monkeypatch.setattr(ray_cluster, "LEAVE_S", 0.2)
    async with RayCluster(how) as joined:
        waits = asyncio.create_task(joined._ray.call("wait"))
        with pytest.raises(HeadLost, match=why):
            await joined.look()
        with pytest.raises(HeadLost, match=why):
            await waits
    assert len(asyncio.all_tasks()) == 1


@pytest.mark.parametrize(("how", "sure"), [(ADDRESS, True), ("lost:1", True), ("slow:1", False)])
async def test_an_actor_is_called_and_ended_and_it_is_known_whether_all_that_it_had_has(
    log: Path, how: str, sure: bool
) -> None:
    async with RayCluster(how) as joined:
        actor = await joined.actor((await joined.look())[1], dict, close_s=1.0, cpus=2)
        assert await actor.call("hello", 1, 2) == (7, "call", ("hello", 1, 2))
        actor.nudge()
        assert await actor.end() is sure
    actor.nudge()  # nobody is there any more
    assert done(log) == ["join", "nudge", "kill 7", "leave"]


async def why_not(address: str) -> str:
    """Why it cannot be joined."""
    with pytest.raises(ConfigError) as raised:
        await RayCluster(address).__aenter__()
    assert raised.value.field == "cluster.address"
    return str(raised.value)


@pytest.mark.parametrize(
    ("says", "told"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", "what listens there is no head of a cluster"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "what listens there is no head of a cluster"),
        (b"", "what listens there is no head of a cluster"),
        ("nothing", "nothing answers there (timed out)"),
        (None, "nothing answers there (Connection refused)"),
    ],
)
async def test_an_address_where_nobody_listens_or_something_else_does_is_refused(
    monkeypatch: pytest.MonkeyPatch, says: Any, told: str
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        if isinstance(says, bytes):
            writer.write(says)
        else:
            await reader.read()
        writer.close()

    monkeypatch.setattr(access, "REACH_S", 0.5)
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        address = "127.0.0.1:{1}".format(*server.sockets[0].getsockname())
        if says is None:
            server.close()
        with pytest.raises(ConfigError) as raised:
            await asyncio.to_thread(access.check_address, "cluster.address", address)
    assert told in str(raised.value)


class Head:
    """What Ray's client of a head says: ``says`` by the mode of authentication."""

    def __init__(self, **says: Exception) -> None:
        self.says = says

    def __call__(self, address: str) -> None:
        if (error := self.says.get(os.environ.get("RAY_AUTH_MODE", ""))) is not None:
            raise error


WRONG = exceptions.AuthenticationError("InvalidAuthToken")
OTHER = (
    "Version mismatch: The cluster was started with:\n    Ray: 2.9.0\nThis process was started with:\n    Ray: 2.60.0"
)


@pytest.mark.parametrize(
    ("mode", "head", "told"),
    [
        ("token", Head(token=WRONG, disabled=WRONG), "asks for another token than the driver's"),
        ("token", Head(), "lets everybody in, without a token: set RAY_AUTH_MODE=disabled where that is meant"),
        ("disabled", Head(disabled=WRONG), "asks for another token than the driver's: set RAY_AUTH_MODE=token"),
        ("disabled", Head(disabled=exceptions.RpcError("Method not found!", 12)), "is no head of a cluster"),
        ("disabled", Head(disabled=exceptions.RpcError("try again", 14)), "cannot be joined (try again)"),
        ("disabled", Head(disabled=PermissionError("another user's")), "cannot be joined (another user's)"),
        ("disabled", Head(disabled=RuntimeError(OTHER)), f"cannot be joined ({' '.join(OTHER.split())})"),
    ],
)
def test_a_head_that_does_not_let_us_in_or_lets_in_everybody_is_told_at_once(
    monkeypatch: pytest.MonkeyPatch, mode: str, head: Head, told: str
) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", mode)
    for name, made in (("GcsClient", head), ("Config", MagicMock()), ("AuthenticationTokenLoader", MagicMock())):
        monkeypatch.setattr(_raylet, name, made)
    with pytest.raises(ConfigError) as raised:
        ray_process._join(ADDRESS)
    assert told in str(raised.value)


async def test_what_the_kernel_refuses_to_ray_or_to_us_is_the_loss_of_what_was_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, broken = ray_process.RayProcess(MagicMock()), MagicMock(side_effect=OSError("Broken pipe"))
    monkeypatch.setattr(ray_process, "ray", MagicMock(put=broken, kill=broken))
    process._actors |= {7: MagicMock(**{"call.remote": broken}), 8: MagicMock(**{"call.remote": AsyncMock()})}
    process._actors[8].call.remote.return_value = "there", {}
    for asked, lost, why in (
        (process.ask(7, "call", "hello"), NodeLost, "Broken pipe"),
        (process.bring(8, 1, str(tmp_path / "gone"), 1, 10), OSError, r"No such file.*gone"),
        (ray_process.put(b"weights"), NodeLost, r"cannot be put into Ray's object store .*Broken pipe"),
        (process.kill(7), HeadLost, "Broken pipe"),
        (ray_process._asked(broken), HeadLost, r"its head does not answer \(Broken pipe"),
    ):
        with pytest.raises(lost, match=why):
            await asked


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node of the cluster was started here."""
    for name in AUTH:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    write_node_state(NodeState(ADDRESS, True, str(tmp_path / "place")), "a" * 64)
    return token_path()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": "the node's"}),
        ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": "other"},) * 2,
        ({"RAY_AUTH_MODE": "disabled"},) * 2,
    ],
)
def test_ray_is_told_the_token_of_the_node_that_was_started_here_unless_the_environment_says_another(
    started: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, str], told: dict[str, str]
) -> None:
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    access = RayCluster(ADDRESS)._access()
    assert {name: value.replace(str(started), "the node's") for name, value in access.items()} == told


async def test_a_driver_without_a_token_for_this_cluster_is_told_how_to_get_one(started: Path) -> None:
    assert "the driver has no token for it: set RAY_AUTH_MODE=token" in await why_not("10.0.0.9:6379")
