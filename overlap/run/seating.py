"""Seats of the parts of a run: on this machine, or over the nodes of its cluster."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING

from overlap.config.fields import Config
from overlap.core.errors import count_of
from overlap.placement.devices import NodeDevices
from overlap.placement.fit import check_fit, seats_here, sequences_at_once
from overlap.placement.memory import MemoryNeed
from overlap.placement.node_seats import check_nodes, driver_node, nodes_line, place_over, ranks_line, seats_over
from overlap.placement.planned_run import PlannedRun, Seats
from overlap.placement.seats import Placement, check_environment, place_here
from overlap.placement.table import transfer
from overlap.process.interrupts import handle_interrupts
from overlap.process.scratch import run_to_end

if TYPE_CHECKING:
    from overlap.cluster.nodes import RayNodeInfo
    from overlap.cluster.pool import ClusterPool
    from overlap.cluster.ray_cluster import RayCluster
    from overlap.core import Task


@dataclass(frozen=True, slots=True)
class RunPlacement:
    """``seats`` are those of this machine. ``nodes`` are those of the cluster that engines and ranks may sit on,
    ``left_out`` has a line for each that they may not.
    """

    placement: Placement
    seats: Seats
    nodes: tuple[NodeDevices, ...] = ()
    left_out: tuple[str, ...] = ()

    def check(self, asked: PlannedRun) -> tuple[MemoryNeed, ...]:
        """The plan of this machine's memory. Raises ConfigError where it, or that of a node, is too small."""
        check_nodes(asked, self.placement, self.nodes)
        return check_fit(asked, self.seats)

    def counted(self, asked: PlannedRun) -> Placement:
        """The placement, with how many sequences an engine decodes at once: the same for those on all nodes."""
        every = [self.seats, *(seats_over(self.placement, node) for node in self.nodes if not node.here)]
        found = [sequences_at_once(asked, seats) for seats in every if seats.engines]
        return replace(self.placement, sequences=min(found, default=0))

    def lines(self) -> list[tuple[str, str]]:
        """Lines of a plan about the nodes."""
        told = [("nodes", "; ".join(map(_about, self.nodes)))] if self.nodes else []
        told += [("left out", line) for line in self.left_out]
        if line := nodes_line(self.placement):
            how = f"; weight transfer by {transfer(self.placement.backend)}" if self.placement.ranks else ""
            told.append(("engines", line + how))
        if line := ranks_line(self.placement):
            told.append(("ranks", line))
        return told


def _about(node: NodeDevices) -> str:
    has = count_of(len(node.devices.cores), "core")
    has += f", {count_of(gpus, 'GPU')}" if (gpus := len(node.devices.names)) else ""
    return f"{node.name}{' (this machine)' if node.here else ''} {has}"


def seat(cfg: Config, *, engine: bool = True, learner: bool = True) -> RunPlacement:
    """Seats for a run, or for one of its two parts alone. With a cluster, its nodes are asked what they have. Raises
    ConfigError.
    """
    spreads = engine or (learner and cfg.learn.ranks > 1)
    if not (cfg.cluster.address and spreads):
        placement = place_here(cfg, engine=engine, learner=learner)
        return RunPlacement(placement, seats_here(cfg, placement))
    left_out: list[str] = []
    nodes = _surveyed(cfg, left_out.append)
    placement = place_over(cfg, nodes, engine=engine, learner=learner)
    check_environment(placement, os.environ)
    return RunPlacement(placement, seats_over(placement, driver_node(nodes)), tuple(nodes), tuple(left_out))


def check_cluster(cfg: Config) -> None:
    """Raise ConfigError where no head of a cluster is at ``cluster.address``: before anything that takes long."""
    if cfg.cluster.address:
        from overlap.cluster.access import check_address

        check_address("cluster.address", cfg.cluster.address)


def _surveyed(cfg: Config, tell: Callable[[str], None]) -> list[NodeDevices]:
    from overlap.cluster.fleet import survey

    found: list[NodeDevices] = []

    async def work() -> None:
        found.extend(await survey(cluster_at(cfg.cluster.address), cfg.run.device, tell))

    with handle_interrupts() as interrupts:
        run_to_end(work, interrupts)
    return found


@cache
def cluster_at(address: str) -> RayCluster:
    """The cluster of a run: one connection for all that works over it."""
    from overlap.cluster.ray_cluster import RayCluster

    return RayCluster(address)


def cluster_pool(
    cfg: Config,
    task: Task,
    tell: Callable[[str], None],
    workers: int | None = None,
    bound: Callable[[RayNodeInfo], int] = lambda node: 0,
) -> ClusterPool:
    """The sandboxes on all nodes; see ``RayMembers`` for ``workers`` and ``bound``."""
    from overlap.cluster.members import RayMembers
    from overlap.cluster.pool import ClusterPool
    from sandbox.pool.pool import Pool

    make_pool = partial(
        Pool,
        isolation=cfg.verify.isolation,
        packages=tuple(task.packages),
        stop_at_first_failure=not getattr(task, "all_cases", False),
    )
    return ClusterPool(RayMembers(cluster_at(cfg.cluster.address), make_pool, workers=workers, bound=bound), tell=tell)
