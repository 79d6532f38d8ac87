"""Cores that engines have on the nodes of a cluster are not the verifiers' there."""

from __future__ import annotations

from overlap.parts import bound_cores
from overlap.placement import EngineSeat, Placement


def test_the_cores_of_all_workers_of_the_engines_on_a_node_are_bound() -> None:
    seats = (EngineSeat(0, 0, cores=((0,),)), EngineSeat(1, 0, cores=((0, 1), (2, 3)), node="n1"))
    placement = Placement(engines=seats)
    assert [bound_cores(placement, node) for node in ("n1", "n2")] == [4, 0]
