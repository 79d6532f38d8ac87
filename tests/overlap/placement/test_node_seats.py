"""Engines over the nodes of a cluster: a table of nodes x replicas x tensor parallelism x ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hardware import GIB, config, cpus, gpus
from shapes import SMALL

from overlap.config.fields import Config
from overlap.core.errors import ConfigError
from overlap.placement.devices import Devices, NodeDevices
from overlap.placement.memory import memory_plan
from overlap.placement.node_seats import check_nodes, fits_on, moved_seat, nodes_line, place_over, seats_over
from overlap.placement.planned_run import PlannedRun
from overlap.placement.seats import place


def refused(cfg: Config, nodes: list[NodeDevices], **parts: bool) -> str:
    with pytest.raises(ConfigError) as caught:
        place_over(cfg, nodes, **parts)
    return str(caught.value)


TABLE = [
    # GPUs of each node, tensor_parallel, replicas, ranks → backend, engines' (node, devices), ranks'
    ((1, 1), 1, 1, 1, "nccl", [("n1", [0])], [0]),
    ((1, 2, 4), 2, 0, 1, "nccl", [("n2", [0, 1]), ("n2", [2, 3]), ("n1", [0, 1])], [0]),
    ((4, 4), 2, 0, 2, "nccl", [("n1", [0, 1]), ("n1", [2, 3]), ("", [0, 1])], [2, 3]),
    ((4, 4), 2, 2, 4, "nccl", [("n1", [0, 1]), ("n1", [2, 3])], [0, 1, 2, 3]),
    ((4, 0, 8), 8, 1, 4, "nccl", [("n2", list(range(8)))], [0, 1, 2, 3]),
    ((4, 1, 3), 2, 0, 4, "nccl", [("n2", [0, 1])], [0, 1, 2, 3]),
]


@pytest.mark.parametrize(("counts", "parallel", "replicas", "ranks", "backend", "engines", "learner"), TABLE)
def test_engines_fill_the_gpus_of_other_nodes_then_what_the_learner_leaves(
    counts, parallel, replicas, ranks, backend, engines, learner
) -> None:
    placed = place_over(config(parallel, replicas, ranks), gpus(*counts))
    assert (placed.kind, placed.backend, placed.address) == ("cuda", backend, "10.0.0.0")
    assert [(seat.node, list(seat.devices)) for seat in placed.engines] == engines
    assert [seat.first_rank for seat in placed.engines] == [1 + i * parallel for i in range(len(engines))]
    assert [seat.seed for seat in placed.engines] == [7 + i for i in range(len(engines))]
    assert [seat.devices for seat in placed.ranks] == [(device,) for device in learner]
    assert [seat.environment["CUDA_VISIBLE_DEVICES"] for seat in placed.engines] == [
        ",".join(map(str, devices)) for _, devices in engines
    ]


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


def test_nodes_that_are_too_few_or_too_small_are_refused_by_name() -> None:
    assert (
        "rollout.replicas=3: on CPUs each engine has a node of 1 core(s) or more, and there are 2: use 2 or less"
        in (refused(config(replicas=3), cpus(4, 4)))
    )
    said = refused(config(2, 3), cpus(4, 4, 1))
    assert "there are 2 (node n2 is too small: 1 core(s)): use 2 or less" in said
    said = refused(config(2, 4, 1), gpus(1, 4, 1))
    assert "the nodes have room for 2 (node n2 is too small: 1 GPU(s)): use 2 or less" in said
    assert "rollout.tensor_parallel=8: an engine has 8 GPU(s) of one node" in refused(config(8, 0, 1), gpus(1, 4))


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


def test_who_sits_where_is_told_where_it_is_over_nodes() -> None:
    assert nodes_line(place_over(config(2, 3, 2), gpus(4, 4))) == (
        "engine 0 on node n1 (GPU 0,1); engine 1 on node n1 (GPU 2,3); engine 2 on this machine (GPU 0,1)"
    )
    assert nodes_line(place_over(config(replicas=2), cpus(4, 4))) == (
        "engine 0 on node n1 (3 cores); engine 1 on this machine (CPU)"
    )
    assert nodes_line(place_over(config(), cpus(4, 4))) == ""
