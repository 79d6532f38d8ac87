"""Which nodes of a Ray cluster get an agent, and with how much of each. The cluster is a double; no Ray runs."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from overlap.cluster.members import AGAIN_MAX_S, AGAIN_S, STEADY_S, RayMembers, RayNode
from overlap.cluster.nodes import NodeRefused, RayNodeInfo, code_digest
from overlap.cluster.ray_cluster import RayActor
from overlap.core.clock import now

pytestmark = pytest.mark.virtual


class Cluster:
    """What :class:`RayCluster` says of ``places``; keeps what was made where."""

    def __init__(self, *places: RayNodeInfo) -> None:
        self.places = list(places)
        self.made: list[tuple[str, int, int]] = []

    async def __aenter__(self) -> None: ...

    async def __aexit__(self, *exc_info: object) -> None: ...

    async def look(self) -> list[RayNodeInfo]:
        return self.places

    async def actor(self, place: RayNodeInfo, make: Any, close_s: float, *, cpus: int) -> Any:
        self.made.append((place.key, make.args[1], cpus))
        return SimpleNamespace(end=lambda: asyncio.sleep(0))


def place(key: str, cpus: int = 16, free: int = 16, alive: bool = True, **more: Any) -> RayNodeInfo:
    return RayNodeInfo(key, f"10.0.0.{key}", alive, 0, cpus=cpus, free=free, **more)


def members(cluster: Cluster, **more: Any) -> RayMembers:
    return RayMembers(cluster, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("counted", "free", "bound", "here", "expected"),
    [
        (16, 16, 0, None, (16, 16)),
        (16, 10, 0, None, (10, 10)),  # others work there
        (16, 10, 4, None, (6, 6)),  # and an engine of ours
        (16, 16, 0, 1, (1, 1)),  # the driver's machine
        (16, 16, 8, 12, (12, 8)),
        (0, 0, 0, 2, (2, 0)),  # a head that lends no cores still judges for its own driver
    ],
)
async def test_a_node_judges_on_the_cores_that_are_free_and_the_drivers_machine_as_without_a_cluster(
    counted: int, free: int, bound: int, here: int | None, expected: tuple[int, int]
) -> None:
    cluster = Cluster(place("1", counted, free, here=here is not None))
    await anext(members(cluster, workers=here or 3, bound=lambda there: bound).joined())
    assert cluster.made == [("1", *expected)]


@pytest.mark.parametrize(
    ("free", "bound", "why"),
    [
        (0, 0, "no core of it is free: Ray counts 16, others have 16"),
        (4, 6, "Ray counts 16, others have 12, engines and learner ranks of this run 4"),
    ],
)
async def test_a_node_without_a_free_core_is_refused_and_told_who_has_them(free: int, bound: int, why: str) -> None:
    cluster = Cluster(place("1", free=free))
    node = await anext(members(cluster, bound=lambda there: bound).joined())
    with pytest.raises(NodeRefused, match=why):
        await node.hello()
    assert not cluster.made


@pytest.mark.parametrize(
    ("frees", "lived_s", "rests"),
    [
        ([0] * 3, 1.0, [AGAIN_S] * 3),
        ([2] * 3, STEADY_S, [AGAIN_S] * 3),
        ([2] * 7, 1.0, [5.0, 10.0, 20.0, 40.0, 80.0, 160.0, AGAIN_MAX_S]),
        ([2, 0, 0, 2], 1.0, [5.0, 5.0, 5.0, 10.0]),  # cut off, and refused until Ray has noticed the end of its agent
    ],
)
async def test_a_node_gets_an_agent_again_after_a_rest_that_grows_as_long_as_no_agent_lives_long(
    frees: list[int], lived_s: float, rests: list[float]
) -> None:
    joined = members(cluster := Cluster(place("1", free=frees[0]))).joined()
    node = await anext(joined)
    for rest_s, free in zip(rests, [*frees[1:], 0], strict=True):
        cluster.places = [place("1", free=free)]
        await asyncio.sleep(lived_s)
        await node.close()
        lost_s = now()
        node = await anext(joined)
        assert now() - lost_s == pytest.approx(rest_s, abs=1.0)


async def test_a_node_that_came_for_one_that_died_gets_an_agent() -> None:
    cluster = Cluster(place("1"))
    joined = members(cluster).joined()
    await anext(joined)
    cluster.places = [place("1", alive=False), place("3")]
    await anext(joined)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(joined), 5.0)
    assert cluster.made == [("1", 16, 16), ("3", 16, 16)]


@pytest.mark.parametrize(
    ("asks", "code", "why"), [(True, "another", "another version"), (False, code_digest(), "lets everybody in")]
)
async def test_an_agent_with_other_code_or_whose_ray_asks_nobody_for_a_token_is_not_used(
    asks: bool, code: str, why: str
) -> None:
    async def call(name: str, number: int, method: str) -> tuple[bool, str]:
        assert (name, method) == ("ask", "identity")
        return asks, code

    ray: Any = SimpleNamespace(call=call)
    with pytest.raises(NodeRefused, match=why):
        await RayNode("n1", RayActor(ray, 7, 1.0)).hello()
