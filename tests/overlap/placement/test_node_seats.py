"""Engines and learner ranks over the nodes of a cluster: tables of nodes x replicas x tensor parallelism x ranks, and
where they go when a node is gone.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hardware import GIB, config, cpus, gpus
from shapes import SMALL

from overlap.config.fields import Config
from overlap.core.errors import ConfigError
from overlap.placement.devices import Devices, NodeDevices
from overlap.placement.memory import memory_plan
from overlap.placement.node_seats import (
    check_nodes,
    fits_on,
    moved_seat,
    nodes_line,
    place_over,
    ranks_line,
    reseated,
    seats_over,
)
from overlap.placement.planned_run import PlannedRun
from overlap.placement.seats import place

ON_GPUS = [
    # GPUs of each node, tensor_parallel, replicas, ranks → engines' (node, devices), ranks' (node, device)
    ((1, 1), 1, 1, 1, [("n1", [0])], [("", 0)]),
    ((1, 2, 4), 2, 0, 1, [("n2", [0, 1]), ("n2", [2, 3]), ("n1", [0, 1])], [("", 0)]),
    ((4, 4), 2, 0, 2, [("n1", [0, 1]), ("n1", [2, 3]), ("", [0, 1])], [("", 2), ("", 3)]),
    ((4, 1, 3), 2, 0, 4, [("n2", [0, 1])], [("", 0), ("", 1), ("", 2), ("", 3)]),
    ((1, 4), 1, 0, 2, [("n1", [0]), ("n1", [1]), ("", [0])], [("n1", 2), ("n1", 3)]),
    ((0, 4), 2, 1, 2, [("n1", [0, 1])], [("n1", 2), ("n1", 3)]),
    ((0, 8, 2), 2, 2, 2, [("n1", [0, 1]), ("n1", [2, 3])], [("n2", 0), ("n2", 1)]),
    ((2, 2, 2), 2, 1, 4, [("n2", [0, 1])], [("", 0), ("", 1), ("n1", 0), ("n1", 1)]),
    ((1, 2, 4), 1, 1, 6, [("", [0])], [("n2", 0), ("n2", 1), ("n2", 2), ("n2", 3), ("n1", 0), ("n1", 1)]),
]


@pytest.mark.parametrize(("counts", "parallel", "replicas", "ranks", "engines", "learner"), ON_GPUS)
def test_on_gpus_ranks_are_where_there_are_enough_and_engines_on_the_others_then_on_what_ranks_leave(
    counts, parallel, replicas, ranks, engines, learner
) -> None:
    placed = place_over(config(parallel, replicas, ranks), gpus(*counts))
    assert (placed.kind, placed.backend, placed.address) == ("cuda", "nccl", placed.ranks[0].address or "10.0.0.0")
    assert [(seat.node, list(seat.devices)) for seat in placed.engines] == engines
    assert [(seat.node, *seat.devices) for seat in placed.ranks] == learner
    assert [seat.first_rank for seat in placed.engines] == [1 + i * parallel for i in range(len(engines))]
    assert [seat.seed for seat in placed.engines] == [7 + i for i in range(len(engines))]
    seats = (*placed.engines, *placed.ranks)
    for seat in seats:
        assert seat.environment["CUDA_VISIBLE_DEVICES"] == ",".join(map(str, seat.devices))
    taken = [(seat.node, device) for seat in seats for device in seat.devices]
    assert len(taken) == len(set(taken))


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
    placed = place_over(config(1, replicas, ranks), cpus(*cores))
    assert [seat.node for seat in placed.engines] == engines
    assert [seat.node for seat in placed.ranks] == learner
    assert [seat.rank for seat in placed.ranks] == list(range(ranks))
    far = any(learner)
    assert [seat.address for seat in placed.ranks] == [f"10.0.0.{node[1:] or 0}" if far else "" for node in learner]
    assert placed.rank_nodes == tuple(dict.fromkeys(filter(None, learner)))
    if far:
        assert placed.address == placed.ranks[0].address


def test_a_learner_without_engines_is_spread_too_and_a_rank_of_its_own_stays() -> None:
    placed = place_over(config(ranks=2), cpus(4, 4, 4), engine=False)
    assert ([seat.node for seat in placed.ranks], placed.engines) == (["n1", "n2"], ())
    nodes = cpus(4, 4, 4)
    assert place_over(config(), nodes, engine=False) == place(config(), nodes[0].devices, engine=False)


@pytest.mark.parametrize(
    ("nodes", "cfg"),
    [
        (gpus(8, 8), config(2, 2, 4)),
        (gpus(2, 0, 0), config(1, 0, 1)),
        (gpus(1, 0), config(1, 1, 1)),
        (cpus(4, 4), config()),
        (cpus(4, 4), config(replicas=0)),
    ],
)
def test_a_run_that_has_room_on_the_drivers_machine_stays_there(nodes: list[NodeDevices], cfg: Config) -> None:
    assert place_over(cfg, nodes) == place(cfg, nodes[0].devices)


def test_on_cpus_an_engine_has_a_node_and_the_drivers_comes_last() -> None:
    placed = place_over(config(replicas=3), cpus(8, 2, 4, 1))
    assert [(seat.node, seat.cores) for seat in placed.engines] == [
        ("n2", ((0, 1, 2),)),
        ("n1", ((0,),)),
        ("n3", ((0,),)),
    ]
    assert (placed.backend, len(placed.ranks), placed.nodes) == ("shm", 1, ("n2", "n1", "n3"))
    placed = place_over(config(replicas=4), cpus(8, 2, 4, 1))
    assert (placed.engines[3].node, placed.engines[3].cores) == ("", ())
    assert [seat.cores for seat in place_over(config(2, 2), cpus(1, 5, 2)).engines] == [((0, 1), (2, 3)), ((0,), (1,))]


@pytest.mark.parametrize(
    ("nodes", "cfg", "told"),
    [
        (cpus(4, 4), config(replicas=3), "rollout.replicas=3: on CPUs each engine has a node of 1 core(s) or more, and "
         "there are 2: use 2 or less"),
        (cpus(4, 4, 1), config(2, 3), "there are 2 (node n2 is too small: 1 core(s)): use 2 or less"),
        (gpus(1, 4, 1), config(2, 4, 1), "the nodes have room for 2 (node n2 is too small: 1 GPU(s)): use 2 or less"),
        (gpus(1, 4), config(8, 0, 1), "rollout.tensor_parallel=8: an engine has 8 GPU(s) of one node"),
        (gpus(1, 2, 4), config(1, 1, 8), "learn.ranks=8: each rank needs a GPU, and the nodes have 7: use 7 or less"),
    ],
)  # fmt: skip
def test_nodes_that_are_too_few_or_too_small_are_refused_by_name(nodes, cfg: Config, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        place_over(cfg, nodes)
    assert told in str(caught.value)


def test_without_a_learner_all_nodes_are_the_engines() -> None:
    placed = place_over(config(2, 0), gpus(2, 4), learner=False)
    assert [seat.node for seat in placed.engines] == ["n1", "n1", ""]
    assert (placed.ranks, placed.backend) == ((), "shm")


def test_an_engine_whose_node_is_gone_has_the_same_seat_on_another_one_that_is_large_enough() -> None:
    cfg, nodes = config(2, 2, 1), gpus(1, 4, 2, 1)
    seat = place_over(cfg, nodes).engines[1]
    other = moved_seat(cfg, seat, nodes[2])
    assert other is not None
    assert (other.node, other.devices, other.first_rank, other.seed) == ("n2", (0, 1), seat.first_rank, seat.seed)
    assert moved_seat(cfg, seat, nodes[3]) is None
    assert moved_seat(cfg, seat, cpus(1, 8)[1]) is None


def test_a_rank_whose_node_is_gone_has_a_seat_on_another_and_the_others_keep_theirs() -> None:
    nodes = cpus(4, 4, 4, 4)
    placed = place_over(config(ranks=2), nodes)
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
    placed = place_over(config(1, 2, 2), nodes)
    assert [(seat.node, *seat.devices) for seat in placed.ranks] == [("n2", 0), ("n2", 1)]
    assert {seat.node for seat in placed.engines} == {"n1"}
    assert reseated(placed, nodes[:2]) is None
    more = [*nodes[:2], replace(nodes[2], name="n3", address="10.0.0.3")]
    after = reseated(placed, more)
    assert after is not None
    assert [(seat.node, seat.devices, seat.visible) for seat in after.ranks] == [("n3", (0,), "0"), ("n3", (1,), "1")]
    assert reseated(placed, more, barred=["n3"]) is None


def test_the_memory_of_each_node_is_planned_and_one_that_is_short_is_named() -> None:
    cfg = config(1, 2, 1)
    nodes = gpus(1, 1, 1, size=80 * GIB)
    asked = PlannedRun(cfg, SMALL)
    (engine,) = memory_plan(asked, seats_over(place_over(cfg, nodes), nodes[1]))
    assert {"engine weights", "KV cache"} < engine.items.keys()
    rank, *_ = memory_plan(asked, seats_over(place_over(cfg, nodes), nodes[0]))
    assert "master and Adam" in rank.items
    assert "KV cache" not in rank.items
    check_nodes(asked, place_over(cfg, nodes), nodes)
    nodes[2] = NodeDevices("n2", "10.0.0.2", Devices.gpus(1, GIB))
    with pytest.raises(ConfigError, match="node n2: the run does not fit"):
        check_nodes(asked, place_over(cfg, nodes), nodes)


def test_the_memory_of_a_node_is_planned_with_the_ranks_that_sit_there() -> None:
    cfg, nodes = config(ranks=2), cpus(4, 4, 4, host=64 * GIB)
    asked = PlannedRun(cfg, SMALL)
    for node, engine, copies in zip(nodes, (1, 0, 0), (1, 2, 0), strict=True):  # rank 0, on n1, keeps one for itself
        (need,) = memory_plan(asked, seats_over(place_over(cfg, nodes), node))
        assert ("KV cache" in need.items, "master and Adam" in need.items) == (bool(engine), not engine)
        assert need.items.get("transfer buffers", 0) >= copies * asked.sent[0]
    far = place_over(config(1, 2, 2), nodes)  # an engine on each other node, and learner ranks here and on the first
    kept = [seats_over(far, node).copies for node in nodes]
    assert kept == [1, 1, 1]
    assert [seats_over(replace(far, backend="nccl"), node).copies for node in nodes] == [0, 0, 0]


@pytest.mark.parametrize(("small", "told"), [("", "start the container"), ("n1", "node n1: "), ("n2", "")])
def test_a_node_with_little_shared_memory_is_named_where_it_has_more_than_one_gpu_at_work(small: str, told: str):
    cfg, nodes = config(2, 1, 2), gpus(2, 2, 2, size=80 * GIB)
    name = small or "n0"
    nodes = [
        replace(node, devices=replace(node.devices, shared=(64 << 20 if node.name == name else 1 << 30)))
        for node in nodes
    ]
    placement, asked = place_over(cfg, nodes), PlannedRun(cfg, SMALL)
    if not told:
        check_nodes(asked, placement, nodes)
        return
    with pytest.raises(ConfigError, match=f"/dev/shm='64 MiB': .*{told}"):
        check_nodes(asked, placement, nodes)


def test_an_engine_fits_on_a_node_that_it_moves_to_where_that_has_the_memory_for_it() -> None:
    cfg, nodes = config(1, 2, 1), gpus(1, 1, 1, size=80 * GIB)
    asked, placement = PlannedRun(cfg, SMALL), place_over(cfg, nodes)
    for size, fits in ((80 * GIB, True), (GIB, False)):
        node = NodeDevices("n9", "10.0.0.9", Devices.gpus(1, size))
        assert (seat := moved_seat(cfg, placement.engines[0], node)) is not None
        assert fits_on(asked, placement, seat, node) is fits
    cfg, nodes = config(1, 2, 1), cpus(4, 4, 4)
    placement = place_over(cfg, nodes)
    for host, fits in ((0, True), (64 * GIB, True), (GIB, False)):
        node = replace(cpus(4, 4)[1], name="n9", host=host)
        assert (seat := moved_seat(cfg, placement.engines[0], node)) is not None
        assert fits_on(PlannedRun(cfg, SMALL), placement, seat, node) is fits


@pytest.mark.parametrize(
    ("nodes", "cfg", "engines", "ranks"),
    [
        (gpus(4, 4), config(2, 3, 2),
         "engine 0 on node n1 (GPU 0,1); engine 1 on node n1 (GPU 2,3); engine 2 on this machine (GPU 0,1)", ""),
        (cpus(4, 4), config(replicas=2), "engine 0 on node n1 (3 cores); engine 1 on this machine (CPU)", ""),
        (cpus(4, 4), config(), "", ""),
        (cpus(4, 4), config(ranks=2), "",
         "rank 0 on this machine (CPU); rank 1 on node n1 (CPU); rendezvous at 10.0.0.0"),
    ],
)  # fmt: skip
def test_who_sits_where_is_told_where_it_is_over_nodes(nodes, cfg: Config, engines: str, ranks: str) -> None:
    placed = place_over(cfg, nodes)
    assert (nodes_line(placed), ranks_line(placed)) == (engines, ranks)
