"""Without its head a cluster is lost: whoever judges over it is told in time, and it is left."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from cluster_runs import PROBLEMS, many, played, program, takes
from fake_nodes import FakeMembers, FakeNode

from overlap.cluster import ray_cluster
from overlap.cluster.nodes import HeadLost, Node
from overlap.cluster.pool import ClusterPool
from overlap.cluster.ray_cluster import RayCluster
from overlap.errors import VerifierError


class Headless(FakeMembers):
    """A cluster whose head is lost after a second."""

    async def joined(self) -> AsyncIterator[Node]:
        async for node in super().joined():
            yield node
            await asyncio.sleep(1.0)
            raise HeadLost("its head does not answer")


def test_when_the_head_is_lost_who_waits_and_who_asks_is_told_and_the_cluster_is_left() -> None:
    async def main() -> None:
        node, said = FakeNode("a", 2, takes(100.0)), list[str]()
        members = Headless([node])
        async with ClusterPool(members, tell=said.append) as pool:
            with pytest.raises(VerifierError, match="the cluster is lost: its head does not answer"):
                await many(pool, 8)
            with pytest.raises(VerifierError, match="the cluster is lost"):
                await pool.judge(PROBLEMS[0], program(9))
            await asyncio.sleep(1.0)
            assert node.closed
            assert members.closed
        assert said[-1] == "the cluster is lost: its head does not answer"

    played(main)


def look(monkeypatch: pytest.MonkeyPatch, nodes: Callable[[], Any]) -> None:
    class Context:
        def get_node_id(self) -> str:
            return "me"

    monkeypatch.setattr(ray_cluster.ray, "nodes", nodes)
    monkeypatch.setattr(ray_cluster.ray, "get_runtime_context", Context)
    monkeypatch.setattr(ray_cluster.state.state, "get_draining_nodes", dict)
    asyncio.run(RayCluster("10.0.0.1:6379").look())


def test_a_head_that_does_not_answer_is_lost_before_ray_ends_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ray_cluster.LOOKING_S < 60
    monkeypatch.setattr(ray_cluster, "LOOKING_S", 1)
    never = threading.Event()
    with pytest.raises(HeadLost, match=r"its head at 10.0.0.1:6379 does not answer \(no answer for 1 s\)"):
        look(monkeypatch, never.wait)
    never.set()


def test_who_is_dead_to_the_head_has_lost_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def nodes() -> list[dict[str, Any]]:
        return [{"NodeID": key, "NodeManagerAddress": "10.0.0.1", "Alive": key != "me"} for key in ("me", "you")]

    with pytest.raises(HeadLost, match="Ray on this machine has ended"):
        look(monkeypatch, nodes)
