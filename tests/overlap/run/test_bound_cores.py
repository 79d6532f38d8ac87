"""Cores that engines have on the nodes of a cluster are not the verifiers' there."""

from __future__ import annotations

from overlap.placement import EngineSeat, Placement, RankSeat
from overlap.run.parts import bound_cores


def test_the_cores_of_all_workers_of_the_engines_on_a_node_are_bound() -> None:
    seats = (EngineSeat(0, 0, cores=((0,),)), EngineSeat(1, 0, cores=((0, 1), (2, 3)), node="n1"))
    placement = Placement(engines=seats)
    assert [bound_cores(placement, node) for node in ("n1", "n2")] == [4, 0]


def test_a_learner_rank_on_a_node_has_a_core_of_it() -> None:
    placement = Placement(ranks=(RankSeat(0, 0), RankSeat(1, 0, node="n1"), RankSeat(2, 0, node="n1")))
    assert [bound_cores(placement, node) for node in ("n1", "n2")] == [2, 0]
