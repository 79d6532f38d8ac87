"""How many programs a node judges at once."""

from __future__ import annotations

import pytest

from overlap.cluster.capacity import Capacity, capacity
from overlap.cluster.nodes import NodeRefused


@pytest.mark.parametrize(
    ("counted", "free", "bound", "here", "expected"),
    [
        (16, 16, 0, None, Capacity(16, 16)),
        (16, 10, 0, None, Capacity(10, 10)),  # others work there
        (16, 10, 4, None, Capacity(6, 6)),  # and an engine of ours
        (16, 16, 0, 1, Capacity(1, 1)),  # the driver's machine
        (16, 16, 8, 12, Capacity(12, 8)),
        (0, 0, 0, 2, Capacity(2, 0)),  # a head that lends no cores still judges for its own driver
    ],
)
def test_a_node_judges_on_the_cores_that_are_free_and_the_drivers_machine_as_without_a_cluster(
    counted: int, free: int, bound: int, here: int | None, expected: Capacity
) -> None:
    assert capacity(counted, free, bound, here) == expected


@pytest.mark.parametrize(
    ("free", "bound", "why"),
    [
        (0, 0, "Ray counts 16, others have 16"),
        (4, 6, "Ray counts 16, others have 12, engines and learner ranks of this run 4"),
    ],
)
def test_a_node_without_a_free_core_is_refused_and_told_who_has_them(free: int, bound: int, why: str) -> None:
    with pytest.raises(NodeRefused, match=why):
        capacity(16, free, bound)
