"""Which nodes of a Ray cluster get an agent, and with how much of each. The cluster is a double; no Ray runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from overlap.clock import run_virtual
from overlap.cluster.members import RayMembers, RayNode
from overlap.cluster.nodes import NodeRefused, RayNodeInfo, code_digest


class Cluster:
    """What :class:`RayCluster` says of ``places``; keeps what was made where."""

    unauthenticated = False

    def __init__(self, *places: RayNodeInfo, free: dict[str, int]) -> None:
        self.places, self.rest = list(places), free
        self.made: list[tuple[str, int, int]] = []

    async def enter(self) -> None: ...

    async def leave(self) -> None: ...

    async def look(self) -> list[RayNodeInfo]:
        return self.places

    async def free(self) -> dict[str, int]:
        return self.rest

    async def actor(self, place: RayNodeInfo, make: Any, close_s: float, *, cpus: int) -> Any:
        self.made.append((place.key, make.args[1], cpus))
        return object()


def place(key: str, **more: Any) -> RayNodeInfo:
    return RayNodeInfo(key, f"10.0.0.{key}", True, 0, cpus=16, **more)


def met(members: RayMembers, count: int) -> list[RayNode]:
    """The first nodes that it has."""

    async def main() -> list[RayNode]:
        found: list[Any] = []
        async for node in members.joined():
            found.append(node)
            if len(found) == count:
                break
        return found

    return run_virtual(main())


def test_an_agent_judges_on_the_free_cores_of_its_node_and_takes_them_of_rays_count() -> None:
    cluster = Cluster(place("1", here=True), place("2"), place("3"), free={"1": 16, "2": 16, "3": 10})
    members = RayMembers(cluster, workers=4, bound=lambda there: 6 if there.key == "2" else 0)  # type: ignore[arg-type]
    met(members, 3)
    assert cluster.made == [("1", 4, 4), ("2", 10, 10), ("3", 10, 10)]


@pytest.mark.parametrize("all_cases", [False, True])
def test_a_node_judges_all_cases_where_the_task_asks_for_them(all_cases: bool) -> None:
    members = RayMembers(Cluster(free={}), all_cases=all_cases)  # type: ignore[arg-type]
    pool = members._make_pool(1)
    assert pool.stop_at_first_failure is not all_cases  # type: ignore[attr-defined]


def test_a_node_that_drains_gets_no_agent_and_one_that_has_it_is_told_to_the_pool() -> None:
    cluster = Cluster(place("1"), place("2", drains=True), free={"1": 16, "2": 16})
    members = RayMembers(cluster)  # type: ignore[arg-type]
    (node,) = met(members, 1)
    assert not node.drains
    assert not members._lacks(place("1", drains=True))
    assert node.drains
    assert cluster.made == [("1", 16, 16)]


def test_a_node_without_a_free_core_gets_no_agent_and_says_why_until_it_has_one() -> None:
    cluster = Cluster(place("1"), free={})  # Ray does not name what is used up
    members = RayMembers(cluster)  # type: ignore[arg-type]
    (node,) = met(members, 1)

    async def refused() -> None:
        with pytest.raises(NodeRefused, match="no core of it is free: Ray counts 16, others have 16"):
            await node.hello()
        await node.close()

    run_virtual(refused())
    assert not cluster.made
    assert not members._lacks(place("1"))  # it rests
    node.lost_s -= 6.0
    cluster.rest = {"1": 2}
    met(members, 1)
    assert cluster.made == [("1", 2, 2)]


def test_a_node_that_died_and_one_of_the_same_address_that_came_are_two() -> None:
    cluster = Cluster(place("1"), free={"1": 1, "2": 1})
    members = RayMembers(cluster)  # type: ignore[arg-type]
    met(members, 1)
    cluster.places = [place("1")._replace(alive=False), place("2")]
    met(members, 1)
    assert [key for key, *_ in cluster.made] == ["1", "2"]


@pytest.mark.parametrize(
    ("asks", "code", "why"), [(True, "another", "another version"), (False, code_digest(), "lets everybody in")]
)
async def test_an_agent_with_other_code_or_whose_ray_asks_nobody_for_a_token_is_not_used(
    asks: bool, code: str, why: str
) -> None:
    async def ask(method: str) -> tuple[bool, str]:
        assert method == "identity"
        return asks, code

    actor: Any = SimpleNamespace(ask=ask)
    with pytest.raises(NodeRefused, match=why):
        await RayNode("n1", actor, authenticated=True).hello()
