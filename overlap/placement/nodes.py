"""``place_over(cfg, nodes)``: seats for a run's engines over the nodes of a cluster, or a refusal with the way out.

    one machine   where the engines and the learner have room on the driver's, or share its GPUs: as without a cluster
    GPUs          engines fill the other nodes, the largest first, then what the learner leaves of the driver's
    CPUs          an engine on a node, bound to its cores; the driver's node last, for the learner works there

The learner's ranks sit on the driver's machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from overlap.config import Config
from overlap.errors import ConfigError
from overlap.placement.devices import Devices
from overlap.placement.fit import Seating, check_fit
from overlap.placement.memory import Asked, Seats, memory_plan
from overlap.placement.seating import seats_on
from overlap.placement.seats import EngineSeat, Placement, place, rank_seats, spread_cores


@dataclass(frozen=True, slots=True)
class NodeDevices:
    """What a node has for engines. ``name`` is what a person reads of it, ``address`` where the others reach it,
    ``host`` its memory that is free, bytes (0: not known). ``here``: it is the driver's machine.
    """

    name: str
    address: str
    devices: Devices
    host: int = 0
    here: bool = False


def place_over(cfg: Config, nodes: Sequence[NodeDevices], *, learner: bool = True) -> Placement:
    """Seats for the engines of a run, and for its learner unless there is none. One of the ``nodes`` is the driver's.
    Raises ConfigError.
    """
    here = driver_node(nodes)
    others = sorted((node for node in nodes if not node.here), key=lambda node: (-_size(node), node.name))
    gpus = cfg.run.device != "cpu" and any(node.devices.names for node in nodes)
    if _stays(cfg, here, others, gpus, learner):
        return place(cfg, here.devices, learner=learner)
    placed = _on_gpus(cfg, here, others, learner) if gpus else _on_cpus(cfg, here, others, learner)
    return replace(placed, address=here.address)


def driver_node(nodes: Sequence[NodeDevices]) -> NodeDevices:
    """That of the driver."""
    (here,) = (node for node in nodes if node.here)
    return here


def _size(node: NodeDevices) -> int:
    return len(node.devices.names) or len(node.devices.cores)


def _stays(cfg: Config, here: NodeDevices, others: Sequence[NodeDevices], gpus: bool, learner: bool) -> bool:
    """Whether the run needs no other node for its engines."""
    r = cfg.rollout
    if not gpus:
        return r.replicas <= 1
    if r.weight_backend == "ipc" or not any(node.devices.names for node in others):
        return True
    ranks = cfg.learn.ranks if learner else 0
    return bool(r.replicas) and r.replicas * r.tensor_parallel + ranks <= len(here.devices.names)


def _on_cpus(cfg: Config, here: NodeDevices, others: Sequence[NodeDevices], learner: bool) -> Placement:
    wanted, parallel, count = cfg.rollout.weight_backend, cfg.rollout.tensor_parallel, cfg.rollout.replicas
    if learner and wanted not in ("auto", "shm"):
        raise ConfigError("rollout.weight_backend", wanted, "needs GPUs, and no node has one: use auto or shm")
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
            replace(seat_on(cfg, node, 0, index), cores=()) if node.here else seat_on(cfg, node, 0, index)
            for index, node in enumerate(large[:count])
        ),
        ranks=rank_seats(cfg) if learner else (),
    )


def _told(has: str, node: NodeDevices) -> str:
    return f" (node {node.name} is too small: {has})"


def _on_gpus(cfg: Config, here: NodeDevices, others: Sequence[NodeDevices], learner: bool) -> Placement:
    wanted, parallel = cfg.rollout.weight_backend, cfg.rollout.tensor_parallel
    ranks = cfg.learn.ranks if learner else 0
    left = len(here.devices.names) - ranks
    if left < 0:
        has = f"node {here.name}, where the run begins, has {len(here.devices.names)}"
        way_out = f"learner ranks sit on GPUs of one machine, and {has}: begin it on a node with {ranks}, or use less"
        raise ConfigError("learn.ranks", ranks, way_out)
    slots = [(node, slot) for node in others for slot in range(len(node.devices.names) // parallel)]
    slots += [(here, slot) for slot in range(left // parallel)]
    count = cfg.rollout.replicas or len(slots)
    if count > len(slots) or not count:
        node = next((node for node in others if 0 < len(node.devices.names) < parallel), None)
        told = _told(f"{len(node.devices.names)} GPU(s)", node) if node else ""
        field = "rollout.replicas" if slots else "rollout.tensor_parallel"
        way_out = f"an engine has {parallel} GPU(s) of one node, and the nodes have room for {len(slots)}{told}: use "
        raise ConfigError(field, count if slots else parallel, way_out + (f"{len(slots)} or less" if slots else "less"))
    taken = slots[:count]
    engines = tuple(seat_on(cfg, node, slot, index) for index, (node, slot) in enumerate(taken))
    first = sum(node.here for node, _ in taken) * parallel
    backend = "shm" if not learner else "nccl" if wanted == "auto" else wanted
    return Placement("cuda", backend, engines, rank_seats(cfg, here.devices, first) if learner else ())


def seat_on(cfg: Config, node: NodeDevices, slot: int, index: int) -> EngineSeat:
    """The seat of engine ``index`` on the ``slot``-th part of a node."""
    parallel, devices = cfg.rollout.tensor_parallel, node.devices
    name, seed, first = "" if node.here else node.name, cfg.run.seed + index, 1 + index * parallel
    if devices.names:
        own = range(slot * parallel, (slot + 1) * parallel)
        visible = ",".join(devices.names[i] for i in own)
        return EngineSeat(index, seed, tuple(own), visible, first_rank=first, node=name)
    return EngineSeat(index, seed, cores=spread_cores(devices.cores, parallel), first_rank=first, node=name)


def moved(cfg: Config, seat: EngineSeat, node: NodeDevices) -> EngineSeat | None:
    """The seat of an engine whose node is gone on another one, which is free; None where that is too small."""
    if bool(seat.devices) != bool(node.devices.names) or _size(node) < cfg.rollout.tensor_parallel:
        return None
    return replace(seat_on(cfg, node, 0, seat.index), first_rank=seat.first_rank)


def seating_over(nodes: Sequence[NodeDevices], node: NodeDevices, *, learner: bool = True) -> Seating:
    """Who sits on one of the nodes."""

    def seats(cfg: Config) -> Seats:
        placed = place_over(cfg, nodes, learner=learner)
        mine = placed.on("" if node.here else node.name)
        return seats_on(replace(placed, engines=mine, ranks=placed.ranks if node.here else ()), node.devices, node.host)

    return seats


def check_nodes(asked: Asked, nodes: Sequence[NodeDevices], *, learner: bool = True) -> None:
    """Raise ConfigError where the engines on a node other than the driver's do not fit there; names the node."""
    placed = place_over(asked.cfg, nodes, learner=learner)
    for node in nodes:
        if not node.here and placed.on(node.name):
            try:
                check_fit(asked, seating_over(nodes, node, learner=learner))
            except ConfigError as error:
                raise ConfigError(error.field, error.value, f"node {node.name}: {error.way_out}") from error


def fits_on(asked: Asked, placement: Placement, seat: EngineSeat, node: NodeDevices) -> bool:
    """Whether an engine that moves to that seat of a node, where no other of the placement's is, has enough memory."""
    alone = replace(placement, engines=(seat,), ranks=())
    return memory_plan(asked, seats_on(alone, node.devices, node.host)).shortage() is None


def nodes_line(placement: Placement) -> str:
    """Which engine sits where; "" where all are on the driver's machine."""
    told = []
    for seat in placement.engines:
        cores = sorted(core for worker in seat.cores for core in worker)
        on = f"GPU {','.join(map(str, seat.devices))}" if seat.devices else f"{len(cores)} core(s)" if cores else "CPU"
        told.append(f"engine {seat.index} on {f'node {seat.node}' if seat.node else 'this machine'} ({on})")
    return "; ".join(told) if placement.nodes else ""
