"""A cluster is joined and left at any moment: one connection at a time, and none is left open. Ray is a double, but
where it says which token it takes.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from places import ROOT
from pooling import until
from ray import exceptions

from overlap.cluster import addresses, ray_cluster
from overlap.cluster.node_state import AUTH, NodeState, token_path, write_node_state
from overlap.cluster.nodes import HeadLost
from overlap.cluster.ray_cluster import RayCluster, RayNodeInfo
from overlap.errors import ConfigError

ADDRESS = "10.0.0.1:6379"
DEADLINE_S = 20.0


class Ray:
    """What is done with it, in order; ``init`` lasts until it ``goes``."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.begun, self.goes = threading.Event(), threading.Event()
        self.goes.set()

    def init(self, **given: Any) -> None:
        self.begun.set()
        assert self.goes.wait(DEADLINE_S)
        self.done.append("init")

    def shutdown(self) -> None:
        self.done.append("shutdown")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ray]:
    made = Ray()
    monkeypatch.setattr(ray_cluster.ray, "init", made.init)
    monkeypatch.setattr(ray_cluster.ray, "shutdown", made.shutdown)
    monkeypatch.setattr(ray_cluster, "greet", lambda address: None)
    monkeypatch.setattr(ray_cluster.auto_init_hook, "enable_auto_connect", True)
    monkeypatch.setattr(sys, "excepthook", ray_cluster.worker.custom_excepthook)
    yield made
    made.goes.set()


def cluster(address: str = ADDRESS) -> RayCluster:
    made = RayCluster(address)
    made.unauthenticated = True
    return made


async def test_a_call_that_comes_when_the_cluster_was_left_joins_none(fake: Ray) -> None:
    joined = cluster()
    await joined.enter()
    await joined.leave()
    with pytest.raises(exceptions.RaySystemError):
        ray_cluster.ray.kill(None)
    assert fake.done == ["init", "shutdown"]


async def test_an_exception_that_ends_the_driver_is_nothing_that_its_head_is_told(fake: Ray) -> None:
    await cluster().enter()
    assert sys.excepthook is ray_cluster.worker.normal_excepthook


async def test_a_leave_that_hangs_is_not_waited_for_again_at_the_end_of_the_process(fake, monkeypatch) -> None:
    goes, gone = threading.Event(), list[object]()
    monkeypatch.setattr(ray_cluster.ray, "shutdown", lambda: goes.wait(DEADLINE_S))
    monkeypatch.setattr(ray_cluster, "LEAVE_S", 0.05)
    monkeypatch.setattr(ray_cluster.atexit, "unregister", gone.append)
    joined = cluster()
    await joined.enter()
    await joined.leave()
    goes.set()
    assert gone == [ray_cluster.ray.shutdown]


async def test_the_last_one_that_leaves_ends_the_connection_and_it_can_be_joined_again(fake: Ray) -> None:
    joined = cluster()
    await asyncio.gather(joined.enter(), joined.enter())
    await joined.leave()
    assert fake.done == ["init"]
    await joined.leave()
    await joined.enter()
    assert fake.done == ["init", "shutdown", "init"]
    await joined.leave()


def test_it_is_joined_again_in_another_event_loop(fake: Ray) -> None:
    """A run asks the nodes in one, and trains in another."""
    joined = cluster()

    async def main() -> None:
        await joined.enter()
        await joined.leave()

    asyncio.run(main())
    asyncio.run(main())
    assert fake.done == ["init", "shutdown"] * 2


async def test_a_connection_that_is_open_only_when_it_was_left_is_closed_and_the_next_waits_for_that(fake: Ray) -> None:
    joined = cluster()
    fake.goes.clear()
    enters = asyncio.create_task(joined.enter())
    await until(fake.begun.is_set)
    enters.cancel()
    await asyncio.wait([enters])
    leaves = asyncio.create_task(joined.leave())
    await asyncio.sleep(0)
    again = asyncio.create_task(joined.enter())
    await asyncio.sleep(0.05)
    fake.goes.set()
    await asyncio.gather(leaves, again)
    assert fake.done == ["init", "shutdown", "init"]
    await joined.leave()
    assert fake.done[-1] == "shutdown"


async def test_one_that_is_left_before_ray_was_asked_is_never_opened(fake: Ray) -> None:
    joined = cluster()
    with ray_cluster._Connection._one:  # another one is being closed
        enters = asyncio.create_task(joined.enter())
        await asyncio.sleep(0.05)
        leaves = asyncio.create_task(joined.leave())
        await asyncio.sleep(0.05)
    await leaves
    with pytest.raises(asyncio.CancelledError):
        await enters
    assert fake.done == []


async def test_who_is_cancelled_while_he_leaves_has_left(fake: Ray, monkeypatch: pytest.MonkeyPatch) -> None:
    joined = cluster()
    await joined.enter()
    leaves = asyncio.create_task(joined.leave())
    await asyncio.sleep(0)
    leaves.cancel()
    await asyncio.wait([leaves])
    await until(lambda: fake.done == ["init", "shutdown"])


async def test_a_frozen_head_that_an_actor_is_asked_of_holds_up_no_loop_and_is_lost(
    fake: Ray, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen = threading.Event()
    monkeypatch.setattr(ray_cluster.ray, "remote", lambda kind: frozen.wait(DEADLINE_S))
    monkeypatch.setattr(ray_cluster, "LOOKING_S", 1)
    monkeypatch.setattr(ray_cluster, "NodeAffinitySchedulingStrategy", lambda *given, **more: None)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0.01)

    counting = asyncio.create_task(count())
    with pytest.raises(HeadLost, match="does not answer"):
        await cluster().actor(RayNodeInfo("k", "10.0.0.2", True, 0), Ray)
    assert turns > 10
    counting.cancel()
    frozen.set()


async def test_a_head_that_says_nothing_is_asked_nothing_else(fake: Ray, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, tries = list[str](), list[float]()

    class Silent:
        def check_alive(self, nodes: list[bytes], timeout: float) -> None:
            tries.append(timeout)
            time.sleep(0.01)  # a thread of its own waits for a deadline
            raise exceptions.RpcError("Deadline Exceeded")

    monkeypatch.setattr(ray_cluster, "greet", lambda address: Silent())
    monkeypatch.setattr(ray_cluster, "KILL_S", 0.1)
    monkeypatch.setattr(ray_cluster.ray, "kill", lambda actor: asked.append("kill"))
    monkeypatch.setattr(ray_cluster.ray, "nodes", lambda: asked.append("nodes"))
    monkeypatch.setattr(ray_cluster, "LOOKING_S", 1)
    joined = cluster()
    await joined.enter()
    with pytest.raises(HeadLost, match="does not answer"):
        await joined.look()
    await ray_cluster.end(Mock(**{"close.remote": lambda: asyncio.sleep(0)}), 1.0)
    made = len(tries)
    await until(lambda: not [thread for thread in threading.enumerate() if thread.name == "ray call"])
    assert len(tries) <= made + 1
    await joined.leave()
    assert tries
    assert not asked


async def test_whoever_watches_the_head_is_told_when_it_is_lost_and_let_go_when_all_have_left(
    fake: Ray, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    async def look(self: RayCluster) -> list[RayNodeInfo]:
        nonlocal looks
        looks += 1
        if looks == 3:
            raise HeadLost("gone")
        return []

    monkeypatch.setattr(RayCluster, "look", look)
    monkeypatch.setattr(ray_cluster, "LOOK_S", 0.001)
    joined = cluster()
    await joined.enter()
    first, second = await asyncio.gather(joined.lost(), joined.lost())
    assert first is second
    assert looks == 3
    await joined.leave()
    await joined.enter()
    waits = asyncio.create_task(joined.lost())
    await asyncio.sleep(0.01)
    await joined.leave()
    with pytest.raises(asyncio.CancelledError):
        await waits
    assert len(asyncio.all_tasks()) == 1


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


def joined_at(address: str) -> str:
    """Why it cannot be."""

    async def main() -> None:
        joined = cluster(address)
        try:
            await joined.enter()
        finally:
            await joined.leave()

    with pytest.raises(ConfigError) as raised:
        asyncio.run(main())
    assert raised.value.field == "cluster.address"
    return str(raised.value)


@pytest.mark.parametrize("address", ["garbage", "10.0.0.1:", "10.0.0.1:99999", ":6379", "a b:6379"])
def test_what_is_no_address_is_refused_in_a_line(address: str) -> None:
    assert "use HOST:PORT, as in 10.0.0.1:6379" in joined_at(address)


def test_an_address_where_nobody_listens_is_refused_at_once(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    listener.close()
    assert "nothing answers there (Connection refused)" in joined_at(f"127.0.0.1:{port}")


@pytest.mark.parametrize("says", [b"SSH-2.0-OpenSSH_9.6\r\n", b"HTTP/1.1 400 Bad Request\r\n\r\n", b""])
def test_an_address_where_something_else_listens_is_refused_at_once(listener: socket.socket, says: bytes) -> None:
    def answer() -> None:
        with listener.accept()[0] as one:
            one.recv(1000)
            one.sendall(says)

    thread = threading.Thread(target=answer)
    thread.start()
    assert "what listens there is no head of a cluster" in joined_at(f"127.0.0.1:{listener.getsockname()[1]}")
    thread.join()


def test_an_address_where_somebody_listens_and_says_nothing_is_refused(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(addresses, "REACH_S", 0.1)
    assert "nothing answers there (timed out)" in joined_at(f"127.0.0.1:{listener.getsockname()[1]}")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (exceptions.AuthenticationError("InvalidAuthToken"), "asks for another token than the driver's"),
        (exceptions.RpcError("Method not found!", 12), "what listens there is no head of a cluster"),
        (exceptions.RpcError("try again", 14), "cannot be joined (try again)"),
    ],
)
def test_a_head_that_does_not_let_us_in_and_what_is_another_server_of_rays_are_told_at_once(
    monkeypatch: pytest.MonkeyPatch, error: Exception, told: str
) -> None:
    def asked(address: str) -> None:
        raise error

    monkeypatch.setattr(ray_cluster, "check_address", lambda *where: None)
    monkeypatch.setattr(ray_cluster, "GcsClient", asked)
    assert told in joined_at(ADDRESS)


def test_a_head_of_another_version_is_told_with_both_versions(fake: Ray, monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**given: Any) -> None:
        text = "Version mismatch: The cluster was started with:\n    Ray: 2.9.0\n    Python: 3.11.7\n"
        raise RuntimeError(text + "This process on Ray was started with:\n    Ray: 2.60.0\n    Python: 3.11.7\n")

    monkeypatch.setattr(ray_cluster.ray, "init", init)
    told = joined_at(ADDRESS)
    assert "Ray: 2.9.0" in told
    assert "Ray: 2.60.0" in told
    assert os.linesep not in told


async def look(monkeypatch: pytest.MonkeyPatch, nodes: Callable[[], Any]) -> None:
    class Context:
        def get_node_id(self) -> str:
            return "me"

    monkeypatch.setattr(ray_cluster.ray, "nodes", nodes)
    monkeypatch.setattr(ray_cluster.ray, "get_runtime_context", Context)
    monkeypatch.setattr(ray_cluster.state.state, "get_draining_nodes", dict)
    await RayCluster(ADDRESS).look()


async def test_a_head_that_does_not_answer_is_lost_before_ray_ends_us(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ray_cluster.LOOKING_S < 60
    monkeypatch.setattr(ray_cluster, "LOOKING_S", 1)
    never = threading.Event()
    with pytest.raises(HeadLost, match=r"its head at 10.0.0.1:6379 does not answer \(no answer for 1 s\)"):
        await look(monkeypatch, never.wait)
    never.set()


async def test_who_is_dead_to_the_head_has_lost_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def nodes() -> list[dict[str, Any]]:
        return [{"NodeID": key, "NodeManagerAddress": "10.0.0.1", "Alive": key != "me"} for key in ("me", "you")]

    with pytest.raises(HeadLost, match="Ray on this machine has ended"):
        await look(monkeypatch, nodes)


DRIVER = """
import asyncio, os, sys
from ray._raylet import AuthenticationMode, get_authentication_mode
from overlap.cluster import RayCluster
from overlap.cluster.ray_cluster import _Connection
from overlap.errors import ConfigError

def mode():
    return get_authentication_mode() == AuthenticationMode.TOKEN, os.environ.get("RAY_AUTH_TOKEN_PATH", "")

async def main(address):
    cluster = RayCluster(address)
    print(*mode())
    try:
        await cluster.enter()
        print(*mode())
    except ConfigError as error:
        print("no token" if "has no token" in str(error) else error)
    await cluster.leave()
    print(*mode())

_Connection.open = _Connection.close = lambda self: None
for address in sys.argv[1:]:
    asyncio.run(main(address))
"""


def said(*addresses: str, **environment: str) -> list[str]:
    own = {name: value for name, value in os.environ.items() if name not in AUTH}
    command = [sys.executable, "-c", DRIVER, *addresses]
    env = own | {"PYTHONPATH": str(ROOT)} | environment
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=100).stdout.splitlines()


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node of the cluster was started here."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    write_node_state(NodeState(ADDRESS, "10.0.0.1", True, "mark", str(tmp_path / "place")), "a" * 64)
    return token_path()


def test_a_driver_takes_the_token_of_the_node_that_was_started_here_for_as_long_as_it_is_in(started: Path) -> None:
    other = ["False ", "no token", "False "]
    assert said(ADDRESS, "10.0.0.9:6379") == ["False ", f"True {started}", "False ", *other]


def test_what_the_environment_says_of_tokens_stays(started: Path, tmp_path: Path) -> None:
    other = str(tmp_path / "other")
    assert said(ADDRESS, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=other) == [f"True {other}"] * 3
