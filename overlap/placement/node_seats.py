"""``place_over(cfg, nodes)``: seats for a run over the nodes of a cluster, or a refusal with the way out.

    one machine   where the engines and the learner have room on the driver's, or share its GPUs: as without a cluster
    GPUs          the ranks are on the driver's machine where it has enough, else on the smallest node that has, else on
                  as few as can be; engines fill the other nodes, the largest first, then what the learner leaves
    CPUs          an engine on a node, bound to its cores, the driver's node last; of several ranks each is on a node of
                  its own while there are such, those without an engine first; one rank stays

The ranks of a node have numbers in a row, and the driver's machine has the first: rank 0 sends the weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from overlap.config.fields import Config
from overlap.core.errors import ConfigError, count_of
from overlap.placement.devices import NodeDevices
from overlap.placement.fit import check_fit, fits, seats_on
from overlap.placement.planned_run import PlannedRun, Seats
from overlap.placement.seats import EngineSeat, Placement, RankSeat, check_shared_memory, engine_seat, place, rank_seats

Homes = Sequence[tuple[NodeDevices, int]]
"""Nodes, and how many ranks are on each."""


def place_over(cfg: Config, nodes: Sequence[NodeDevices], *, engine: bool = True, learner: bool = True) -> Placement:
    """Seats for the engines of a run and for its learner, or for one of the two alone. One of the ``nodes`` is the
    driver's. Raises ConfigError.
    """
    here = driver_node(nodes)
    others = sorted((node for node in nodes if not node.here), key=lambda node: (-_size(node), node.name))
    gpus = cfg.run.device != "cpu" and any(node.devices.names for node in nodes)
    if _stays(cfg, here, others, gpus, engine, learner):
        placed = place(cfg, here.devices, engine=engine, learner=learner)
    else:
        placed = _on_gpus(cfg, here, others, engine, learner) if gpus else _on_cpus(cfg, here, others, learner)
        placed = replace(placed, address=here.address)
    if learner and not gpus and cfg.learn.ranks > 1:
        names = _emptiest(cfg.learn.ranks, [*others, here], (), placed.engines)
        named = {node_name(node): node for node in nodes}  # the driver's is ""
        homes = [(named[name], names.count(name)) for name in sorted(dict.fromkeys(names), key=bool)]
        placed = replace(placed, ranks=_seats_in(cfg, homes, {}))
    return replace(placed, address=placed.ranks[0].address) if placed.rank_nodes else placed


def driver_node(nodes: Sequence[NodeDevices]) -> NodeDevices:
    """Node of the driver."""
    (here,) = (node for node in nodes if node.here)
    return here


def _size(node: NodeDevices) -> int:
    return len(node.devices.names) or len(node.devices.cores)


def _stays(
    cfg: Config, here: NodeDevices, others: Sequence[NodeDevices], gpus: bool, engine: bool, learner: bool
) -> bool:
    """True when the run needs no other node for its engines, and on GPUs for its ranks."""
    r, ranks = cfg.rollout, cfg.learn.ranks if learner else 0
    if not gpus:
        return r.replicas <= 1 or not engine
    if not any(node.devices.names for node in others):
        return True
    if not engine:
        return ranks <= len(here.devices.names)
    return bool(r.replicas) and r.replicas * r.tensor_parallel + ranks <= len(here.devices.names)


def _on_cpus(cfg: Config, here: NodeDevices, others: Sequence[NodeDevices], learner: bool) -> Placement:
    parallel, count = cfg.rollout.tensor_parallel, cfg.rollout.replicas
    large = [node for node in (*others, here) if len(node.devices.cores) >= parallel]
    if len(large) < count:
        node = next((node for node in others if node not in large), None)
        told = _told(f"{len(node.devices.cores)} core(s)", node) if node else ""
        way_out = (
            f"on CPUs each engine has a node of {parallel} core(s) or more, and there are {len(large)}{told}: use "
        )
        raise ConfigError("rollout.replicas", count, way_out + (f"{len(large)} or less" if large else "other nodes"))
    return Placement(
        engines=tuple(
            seat if seat.node or here.devices.quota else replace(seat, cores=())  # beside the learner vLLM chooses
            for seat in (engine_seat(cfg, node.devices, 0, i, node_name(node)) for i, node in enumerate(large[:count]))
        ),
        ranks=rank_seats(cfg) if learner else (),
    )


def _told(has: str, node: NodeDevices) -> str:
    return f" (node {node.name} is too small: {has})"


def _on_gpus(cfg: Config, here: NodeDevices, others: Sequence[NodeDevices], engine: bool, learner: bool) -> Placement:
    homes = _homes_on_gpus(cfg.learn.ranks, here, others) if learner else ()
    left = {node_name(node): len(node.devices.names) for node in (*others, here)}
    for node, count in homes:
        left[node_name(node)] -= count
    taken = _slots(cfg, here, others, left) if engine else []
    engines = tuple(engine_seat(cfg, node.devices, slot, i, node_name(node)) for i, (node, slot) in enumerate(taken))
    behind = Counter(node_name(node) for node, _ in taken for _ in range(cfg.rollout.tensor_parallel))
    return Placement("cuda", "nccl" if engine and learner else "shm", engines, _seats_in(cfg, homes, behind))


def _slots(
    cfg: Config, here: NodeDevices, others: Sequence[NodeDevices], left: Mapping[str, int]
) -> list[tuple[NodeDevices, int]]:
    """A part of a node for each engine, of the GPUs that are ``left`` there."""
    parallel = cfg.rollout.tensor_parallel
    slots = [(node, slot) for node in (*others, here) for slot in range(left[node_name(node)] // parallel)]
    count = cfg.rollout.replicas or len(slots)
    if count > len(slots) or not count:
        node = next((node for node in others if 0 < len(node.devices.names) < parallel), None)
        told = _told(f"{len(node.devices.names)} GPU(s)", node) if node else ""
        field = "rollout.replicas" if slots else "rollout.tensor_parallel"
        way_out = f"an engine has {parallel} GPU(s) of one node, and the nodes have room for {len(slots)}{told}: use "
        raise ConfigError(field, count if slots else parallel, way_out + (f"{len(slots)} or less" if slots else "less"))
    return slots[:count]


def _homes_on_gpus(ranks: int, here: NodeDevices, others: Sequence[NodeDevices]) -> Homes:
    """The nodes for ``ranks`` ranks; ``others`` are the largest first. Raises ConfigError for too few GPUs."""
    nodes = [here, *others]
    whole = [node for node in (here, *reversed(others)) if len(node.devices.names) >= ranks]
    if whole:
        return [(whole[0], ranks)]
    homes, left = [], ranks
    for node in sorted(nodes, key=lambda node: -len(node.devices.names)):
        if took := min(left, len(node.devices.names)):
            homes.append((node, took))
            left -= took
    if left:
        there = ranks - left
        raise ConfigError(
            "learn.ranks", ranks, f"each rank needs a GPU, and the nodes have {there}: use {there} or less"
        )
    return sorted(homes, key=lambda home: not home[0].here)


def _emptiest(
    ranks: int, nodes: Sequence[NodeDevices], kept: Sequence[RankSeat], engines: Sequence[EngineSeat]
) -> list[str]:
    """A node for each of ``ranks`` ranks: one with the fewest of them, of these one with the fewest engines."""
    counts, busy = Counter(seat.node for seat in kept), Counter(seat.node for seat in engines)
    found = []
    for _ in range(ranks):
        found.append(min(map(node_name, nodes), key=lambda name: (counts[name], busy[name])))
        counts[found[-1]] += 1
    return found


def _seats_in(cfg: Config, homes: Homes, first: Mapping[str, int]) -> tuple[RankSeat, ...]:
    """Seats for all ranks in their nodes, on GPUs from the ``first`` of each on, by the node's name."""
    far = any(not node.here for node, _ in homes)
    seats = list[RankSeat]()
    for node, count in homes:
        for number in range(first.get(node_name(node), 0), first.get(node_name(node), 0) + count):
            seat = RankSeat(len(seats), cfg.run.seed, node=node_name(node), address=node.address if far else "")
            seats.append(_on_device(seat, node, number))
    return tuple(seats)


def reseated(placement: Placement, nodes: Iterable[NodeDevices], barred: Collection[str] = ()) -> Placement | None:
    """The placement with other seats for those ranks whose node is not among the ``nodes``, which are up; none of these
    on one that is ``barred``. None where there is no room.
    """
    living = {node_name(node): node for node in nodes}
    lost = [seat for seat in placement.ranks if seat.node not in living]
    kept = [seat for seat in placement.ranks if seat.node in living]
    if not lost:
        return placement
    able = {name: node for name, node in living.items() if name not in barred}
    order = sorted(able.values(), key=lambda node: (node.here, -len(node.devices.cores), node.name))
    if placement.kind == "cpu":
        places = [(name, 0) for name in _emptiest(len(lost), order, kept, placement.engines)] if order else []
    else:
        seats: list[EngineSeat | RankSeat] = [*placement.engines, *kept]
        taken = {(seat.node, device) for seat in seats for device in seat.devices}
        every = [(node_name(node), number) for node in order for number in range(len(node.devices.names))]
        places = [place for place in every if place not in taken]
    if len(places) < len(lost):
        return None
    moved = []
    for seat, (name, number) in zip(lost, places, strict=False):
        to = replace(seat, node=name, address=living[name].address, devices=(), visible="")
        moved.append(_on_device(to, living[name], number))
    ranks = sorted([*kept, *moved], key=lambda seat: seat.rank)
    return replace(placement, ranks=tuple(ranks), address=ranks[0].address)


def _on_device(seat: RankSeat, node: NodeDevices, number: int) -> RankSeat:
    names = node.devices.names
    return replace(seat, devices=(number,), visible=names[number]) if names else seat


def node_name(node: NodeDevices) -> str:
    """Name of a node in its seats."""
    return "" if node.here else node.name


def moved_seat(cfg: Config, seat: EngineSeat, node: NodeDevices) -> EngineSeat | None:
    """The seat of an engine whose node is gone on another one, which is free; None where that is too small."""
    if bool(seat.devices) != bool(node.devices.names) or _size(node) < cfg.rollout.tensor_parallel:
        return None
    return engine_seat(cfg, node.devices, 0, seat.index, node_name(node))


def seats_over(placement: Placement, node: NodeDevices) -> Seats:
    """Seats on one of the nodes."""
    name = node_name(node)
    mine = replace(placement, engines=placement.on(name), ranks=placement.ranks_on(name))
    return replace(seats_on(mine, node.devices, node.host), copies=_copies(placement, name))


def _copies(placement: Placement, name: str) -> int:
    """Copies of the weights on their way by shm: one at either end of each way to another machine; that of an engine
    for itself, and on the driver's machine one for all engines elsewhere.
    """
    if placement.backend != "shm" or not (placement.engines and placement.ranks):
        return 0
    first = placement.ranks[0].node
    ends = bool(first) and name in ("", first)
    leaves = name == "" and any(engine.node for engine in placement.engines)
    return ends + leaves + (len(placement.on(name)) if name else 0)


def check_nodes(run: PlannedRun, placement: Placement, nodes: Sequence[NodeDevices]) -> None:
    """Raise ConfigError where what is placed on a node other than the driver's does not fit there, or where any node
    has too little shared memory; names the node.
    """
    for node in nodes:
        check_shared_memory(placement, node.devices, node_name(node))
        if not node.here and (placement.on(node.name) or placement.ranks_on(node.name)):
            check_fit(run, seats_over(placement, node), node.name)


def fits_on(run: PlannedRun, placement: Placement, seat: EngineSeat, node: NodeDevices) -> bool:
    """True when an engine that moves to that seat of a node, where no other of the placement's is, has enough memory,
    also with learner ranks beside it.
    """
    return fits(run, seats_over(replace(placement, engines=(seat,)), node))


def nodes_line(placement: Placement) -> str:
    """Which engine is on which node; "" where all are on the driver's machine."""
    told = []
    for seat in placement.engines:
        cores = sorted(core for worker in seat.cores for core in worker)
        on = count_of(len(cores), "core") if cores else ""
        told.append(f"engine {seat.index} on {_where(seat, on)}")
    return "; ".join(told) if placement.nodes else ""


def ranks_line(placement: Placement) -> str:
    """Which learner rank is on which node, and where they meet; "" where all are on the driver's machine."""
    if not placement.rank_nodes:
        return ""
    told = [f"rank {seat.rank} on {_where(seat)}" for seat in placement.ranks]
    return f"{'; '.join(told)}; rendezvous at {placement.ranks[0].address}"


def _where(seat: EngineSeat | RankSeat, cores: str = "") -> str:
    on = f"GPU {','.join(map(str, seat.devices))}" if seat.devices else cores or "CPU"
    return f"{f'node {seat.node}' if seat.node else 'this machine'} ({on})"
