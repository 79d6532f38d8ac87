"""Learner ranks over the nodes of a cluster: tables of where they sit, and where they go when a node is gone."""

from __future__ import annotations

from dataclasses import replace

import hardware
import pytest
from hardware import GIB, cpus, gpus
from shapes import SMALL

from overlap.config.fields import Config
from overlap.core.errors import ConfigError
from overlap.placement.memory import memory_plan
from overlap.placement.node_seats import check_nodes, place_over, ranks_line, reseated, seats_over
from overlap.placement.planned_run import PlannedRun
from overlap.placement.seats import place


def config(ranks: int, replicas: int = 1, parallel: int = 1) -> Config:
    return hardware.config(parallel, replicas, ranks)


ON_CPUS = [
    # cores of each node, replicas, ranks → the engines' nodes, the ranks'
    ((4, 4, 4), 1, 2, [""], ["n1", "n2"]),
    ((4, 2, 8), 1, 2, [""], ["n2", "n1"]),
    ((4, 4), 1, 2, [""], ["", "n1"]),
    ((4, 4, 4), 2, 2, ["n1", "n2"], ["", "n1"]),
    ((4, 4), 1, 5, [""], ["", "", "n1", "n1", "n1"]),
    ((4,), 1, 2, [""], ["", ""]),
]


@pytest.mark.parametrize(("cores", "replicas", "ranks", "engines", "learner"), ON_CPUS)
def test_on_cpus_ranks_spread_over_all_nodes_and_sit_together_on_each(
    cores: tuple[int, ...], replicas: int, ranks: int, engines: list[str], learner: list[str]
) -> None:
    placed = place_over(config(ranks, replicas), cpus(*cores))
    assert [seat.node for seat in placed.engines] == engines
    assert [seat.node for seat in placed.ranks] == learner
    assert [seat.rank for seat in placed.ranks] == list(range(ranks))
    far = any(learner)
    assert [seat.address for seat in placed.ranks] == [f"10.0.0.{node[1:] or 0}" if far else "" for node in learner]
    assert placed.rank_nodes == tuple(dict.fromkeys(filter(None, learner)))
    if far:
        assert placed.address == placed.ranks[0].address


def test_a_rank_of_its_own_stays_on_the_drivers_machine() -> None:
    cfg, nodes = config(1), cpus(4, 4, 4)
    assert place_over(cfg, nodes) == place(cfg, nodes[0].devices)
    assert place_over(cfg, nodes, engine=False) == place(cfg, nodes[0].devices, engine=False)


def test_a_learner_without_engines_is_spread_too() -> None:
    placed = place_over(config(2), cpus(4, 4, 4), engine=False)
    assert ([seat.node for seat in placed.ranks], placed.engines) == (["n1", "n2"], ())


ON_GPUS = [
    # GPUs of each node, tensor_parallel, replicas, ranks → engines' (node, devices), ranks' (node, device)
    ((1, 4), 1, 0, 2, [("n1", [0]), ("n1", [1]), ("", [0])], [("n1", 2), ("n1", 3)]),
    ((0, 4), 2, 1, 2, [("n1", [0, 1])], [("n1", 2), ("n1", 3)]),
    ((0, 8, 2), 2, 2, 2, [("n1", [0, 1]), ("n1", [2, 3])], [("n2", 0), ("n2", 1)]),
    ((2, 2, 2), 2, 1, 4, [("n2", [0, 1])], [("", 0), ("", 1), ("n1", 0), ("n1", 1)]),
    ((1, 2, 4), 1, 1, 6, [("", [0])], [("n2", 0), ("n2", 1), ("n2", 2), ("n2", 3), ("n1", 0), ("n1", 1)]),
]


@pytest.mark.parametrize(("counts", "parallel", "replicas", "ranks", "engines", "learner"), ON_GPUS)
def test_on_gpus_ranks_sit_where_there_are_enough_and_engines_on_the_others(
    counts, parallel, replicas, ranks, engines, learner
) -> None:
    placed = place_over(config(ranks, replicas, parallel), gpus(*counts))
    assert [(seat.node, list(seat.devices)) for seat in placed.engines] == engines
    assert [(seat.node, *seat.devices) for seat in placed.ranks] == learner
    assert [seat.environment["CUDA_VISIBLE_DEVICES"] for seat in placed.ranks] == [str(gpu) for _, gpu in learner]
    assert (placed.backend, placed.address) == ("nccl", placed.ranks[0].address)
    taken = [(seat.node, device) for seat in (*placed.engines, *placed.ranks) for device in seat.devices]
    assert len(taken) == len(set(taken))


def test_too_few_gpus_for_the_ranks_are_refused_with_how_many_there_are() -> None:
    with pytest.raises(
        ConfigError, match=r"learn\.ranks=8: each rank needs a GPU, and the nodes have 7: use 7 or less"
    ):
        place_over(config(8, 1), gpus(1, 2, 4))


def test_a_rank_whose_node_is_gone_has_a_seat_on_another_and_the_others_keep_theirs() -> None:
    nodes = cpus(4, 4, 4, 4)
    placed = place_over(config(2), nodes)
    assert [seat.node for seat in placed.ranks] == ["n1", "n2"]
    assert reseated(placed, nodes) == placed
    after = reseated(placed, [nodes[0], nodes[2], nodes[3]])
    assert after is not None
    assert [(seat.rank, seat.node, seat.address) for seat in after.ranks] == [
        (0, "n3", "10.0.0.3"),
        (1, "n2", "10.0.0.2"),
    ]
    assert (after.ranks[1], after.address) == (placed.ranks[1], "10.0.0.3")
    alone = reseated(placed, nodes[:1])
    assert alone is not None
    assert ([seat.node for seat in alone.ranks], alone.rank_nodes) == (["", ""], ())
    assert reseated(placed, []) is None


def test_a_rank_moves_to_a_gpu_that_nobody_has_or_not_at_all() -> None:
    nodes = gpus(1, 2, 2)
    placed = place_over(config(2, 2), nodes)
    assert [(seat.node, *seat.devices) for seat in placed.ranks] == [("n2", 0), ("n2", 1)]
    assert {seat.node for seat in placed.engines} == {"n1"}
    assert reseated(placed, nodes[:2]) is None
    more = [*nodes[:2], replace(nodes[2], name="n3", address="10.0.0.3")]
    after = reseated(placed, more)
    assert after is not None
    assert [(seat.node, seat.devices, seat.visible) for seat in after.ranks] == [("n3", (0,), "0"), ("n3", (1,), "1")]
    assert reseated(placed, more, barred=["n3"]) is None


def test_the_memory_of_a_node_is_planned_with_the_ranks_that_sit_there() -> None:
    cfg, nodes = config(2), cpus(4, 4, 4, host=64 * GIB)
    asked = PlannedRun(cfg, SMALL)
    for node, engine, copies in zip(nodes, (1, 0, 0), (1, 2, 0), strict=True):  # rank 0, on n1, keeps one for itself
        (need,) = memory_plan(asked, seats_over(place_over(cfg, nodes), node))
        assert ("KV cache" in need.items, "master and Adam" in need.items) == (bool(engine), not engine)
        assert need.items.get("transfer buffers", 0) >= copies * asked.sent[0]
    check_nodes(asked, place_over(cfg, nodes), nodes)
    far = place_over(config(2, 2), nodes)  # an engine on each other node, and learner ranks here and on the first
    kept = [seats_over(far, node).copies for node in nodes]
    assert kept == [1, 1, 1]
    assert [seats_over(replace(far, backend="nccl"), node).copies for node in nodes] == [0, 0, 0]
    nodes[2] = replace(nodes[2], host=GIB // 8)
    with pytest.raises(ConfigError, match="node n2: the run does not fit"):
        check_nodes(asked, place_over(cfg, nodes), nodes)


def test_who_sits_where_is_told_with_the_place_where_they_meet() -> None:
    assert ranks_line(place_over(config(2), cpus(4, 4))) == (
        "rank 0 on this machine (CPU); rank 1 on node n1 (CPU); rendezvous at 10.0.0.0"
    )
    assert ranks_line(place_over(config(2), gpus(0, 4))).startswith("rank 0 on node n1 (GPU ")
    assert ranks_line(place_over(config(1), cpus(4, 4))) == ""
