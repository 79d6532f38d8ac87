"""The real parts of a run: as many engines behind one door as its placement has seats for, and the verifier."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from overlap.config import Config
from overlap.core import Generator, Verifier
from overlap.placement import Asked, EngineSeat, NodeDevices, Placement, fits_on, read_shape
from overlap.prepared import Prepared
from overlap.spread import cluster_of

if TYPE_CHECKING:
    from overlap.cluster import ClusterPool
    from overlap.generate import Site


def steady_engines(
    prepared: Prepared,
    placement: Placement,
    scratch: Path,
    *,
    log: Path,
    tell: Callable[[str], None],
    watch: Callable[[int], None],
    went_on: Callable[[float], None],
) -> Generator:
    """Engines for a trainer, each of which comes up again after a death; see ``SteadyGenerator`` for the rest."""
    from overlap.generate import Replicas, SteadyGenerator, VllmGenerator

    cfg, policy, site_of = prepared.cfg, prepared.policy, sites(prepared, placement, tell)

    def steady(engine: int, alone: bool) -> Generator:
        own, site = engine_log(log, engine, alone), site_of(engine)
        return SteadyGenerator(
            lambda: VllmGenerator(cfg, policy, scratch, log=own, placement=placement, engine=engine, site=site),
            alone=alone,
            sleeps=placement.sleeps,
            tell=tell,
            watch=watch,
            went_on=went_on,
        )

    count = len(placement.engines)
    if count == 1:
        return steady(0, True)
    return Replicas([steady(engine, False) for engine in range(count)], sleeps=placement.sleeps)


def before_starts(generator: Generator, placement: Placement) -> Mapping[str, Callable[[], Awaitable[None]]]:
    """Where they take turns on their GPUs, the engines have theirs first, and sleep before the learner begins."""

    async def asleep() -> None:
        await generator.start()
        await generator.sleep()

    return {"learner": asleep} if placement.sleeps else {}


def serving_engines(
    prepared: Prepared,
    placement: Placement,
    scratch: Path,
    *,
    log: Path,
    tell: Callable[[str], None] = print,
    watch: Callable[[int], None] = lambda pid: None,
) -> Generator:
    """Engines that serve the policy's own weights, without a trainer. Over nodes, which may be lost, each comes up
    again after a death; ``tell`` and ``watch``: see ``SteadyGenerator``.
    """
    from overlap.generate import Replicas, SteadyGenerator, VllmGenerator

    cfg, policy, site_of = prepared.cfg, prepared.policy, sites(prepared, placement, tell)

    def serving(engine: int, alone: bool) -> Generator:
        own, site = engine_log(log, engine, alone), site_of(engine)

        def make() -> Generator:
            return VllmGenerator(
                cfg, policy, scratch, standalone=True, log=own, placement=placement, engine=engine, site=site
            )

        return SteadyGenerator(make, alone=alone, serving=True, tell=tell, watch=watch) if placement.nodes else make()

    count = len(placement.engines)
    if count == 1:
        return serving(0, True)
    return Replicas([serving(engine, False) for engine in range(count)], serving=True)


def sites(prepared: Prepared, placement: Placement, tell: Callable[[str], None]) -> Callable[[int], Site | None]:
    """The site of each engine, by its index; None for those on this machine."""
    if not placement.nodes:
        return lambda engine: None
    from overlap.cluster import Berths, FarSite, RayFleet  # imports Ray

    fleet = RayFleet(cluster_of(prepared.cfg), prepared.cfg.run.device, prepared.policy)

    def fits(seat: EngineSeat, node: NodeDevices) -> bool:
        return fits_on(Asked(prepared.cfg, read_shape(prepared.policy)), placement, seat, node)

    berths = Berths(prepared.cfg, fleet, tell, fits)
    return lambda engine: FarSite(fleet, berths) if placement.engines[engine].node else None


def sandbox_verifier(
    prepared: Prepared, placement: Placement, scratch: Path, *, log: Path, tell: Callable[[str], None]
) -> Verifier:
    """The pool of sandboxes for the task of a run, on this machine or on the nodes of its cluster, beside its engines
    there.
    """
    from overlap.verify import SandboxVerifier

    cfg, task = prepared.cfg, prepared.task
    pool = cluster_pool(cfg, placement, tuple(task.packages), tell) if cfg.cluster.address else None
    return SandboxVerifier(cfg, task, log=log, scratch=scratch, tell=tell, pool=pool)


def bound_cores(placement: Placement, node: str) -> int:
    """Cores of another node than the driver's that engines are bound to."""
    return sum(len(worker) for seat in placement.on(node) for worker in seat.cores)


def cluster_pool(
    cfg: Config, placement: Placement, packages: tuple[str, ...], tell: Callable[[str], None]
) -> Callable[[], ClusterPool]:
    """Makes a pool over the nodes at ``cluster.address``."""

    def make() -> ClusterPool:
        from overlap.cluster import ClusterPool, RayMembers  # imports Ray

        verify = cfg.verify
        members = RayMembers(
            cluster_of(cfg),
            isolation=verify.isolation,
            packages=packages,
            workers=verify.workers,
            bound=lambda place: bound_cores(placement, place.name),
        )
        return ClusterPool(members, tell=tell)

    return make


def engine_log(log: Path, engine: int, alone: bool) -> Path:
    """Where what an engine prints goes: into the log of the run, or, one of several, into a file of its own."""
    if alone:
        return log
    folder = log.parent / "engines"
    folder.mkdir(exist_ok=True)
    return folder / f"{engine}.log"
