"""Nodes of the learner's ranks, and the node that replaces one that is gone. Pure functions.

    GPUs   on the driver's machine where it has enough, else on the smallest node that has, else on as few as can be
    CPUs   several each on a node of its own while there are such, those without an engine first; one stays

The ranks of a node have numbers in a row, and the driver's machine has the first: rank 0 sends the weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from overlap.config.fields import Config
from overlap.core.errors import ConfigError
from overlap.placement.devices import NodeDevices
from overlap.placement.seats import EngineSeat, Placement, RankSeat

Homes = Sequence[tuple[NodeDevices, int]]
"""Nodes, and how many ranks are on each."""


def homes_on_gpus(ranks: int, here: NodeDevices, others: Sequence[NodeDevices]) -> Homes:
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


def homes_on_cpus(ranks: int, here: NodeDevices, others: Sequence[NodeDevices], engines: Sequence[EngineSeat]) -> Homes:
    """The nodes for ``ranks`` ranks, beside these engines."""
    counts: Counter[str] = Counter()
    names = _emptiest(ranks, [*others, here], counts, engines)
    nodes = {node_name(node): node for node in (here, *others)}
    return [(nodes[name], counts[name]) for name in sorted(dict.fromkeys(names), key=bool)]  # the driver's is ""


def _emptiest(
    ranks: int, nodes: Sequence[NodeDevices], counts: Counter[str], engines: Sequence[EngineSeat]
) -> list[str]:
    """A node for each of ``ranks`` ranks: one with the fewest of them, of these one with the fewest engines."""
    names, busy = [node_name(node) for node in nodes], Counter(seat.node for seat in engines)
    found = []
    for _ in range(ranks):
        found.append(min(names, key=lambda name: (counts[name], busy[name])))
        counts[found[-1]] += 1
    return found


def seats_in(cfg: Config, homes: Homes, first: Mapping[str, int]) -> tuple[RankSeat, ...]:
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
        counts = Counter(seat.node for seat in kept)
        places = [(name, 0) for name in _emptiest(len(lost), order, counts, placement.engines)] if order else []
    else:
        places = _free_gpus(placement, order, kept)
    if len(places) < len(lost):
        return None
    moved = []
    for seat, (name, number) in zip(lost, places, strict=False):
        to = replace(seat, node=name, address=living[name].address, devices=(), visible="")
        moved.append(_on_device(to, living[name], number))
    ranks = sorted([*kept, *moved], key=lambda seat: seat.rank)
    return replace(placement, ranks=tuple(ranks), address=ranks[0].address)


def _free_gpus(placement: Placement, nodes: Sequence[NodeDevices], kept: Sequence[RankSeat]) -> list[tuple[str, int]]:
    seats: list[EngineSeat | RankSeat] = [*placement.engines, *kept]
    taken = {(seat.node, device) for seat in seats for device in seat.devices}
    every = [(node_name(node), number) for node in nodes for number in range(len(node.devices.names))]
    return [place for place in every if place not in taken]


def _on_device(seat: RankSeat, node: NodeDevices, number: int) -> RankSeat:
    names = node.devices.names
    return replace(seat, devices=(number,), visible=names[number]) if names else seat


def node_name(node: NodeDevices) -> str:
    """Name of a node in its seats."""
    return "" if node.here else node.name
