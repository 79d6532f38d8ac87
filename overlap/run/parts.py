"""The real parts of a run: as many engines behind one door as its placement has seats for, and the verifier."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from overlap.config import Config
from overlap.core import Generator
from overlap.placement import EngineSeat, NodeDevices, Placement, PlannedRun, fits_on, read_shape
from overlap.prepare import Prepared, cluster_of
from overlap.record import RunFile

if TYPE_CHECKING:
    from overlap.cluster import Berths, ClusterPool, RankSite, RayFleet
    from overlap.generate import EngineSite
    from overlap.learner import ProcessLearner
    from overlap.server import HarnessTask
    from overlap.verify import SandboxVerifier


def steady_engines(
    prepared: Prepared,
    placement: Placement,
    scratch: Path,
    *,
    log: Path,
    tell: Callable[[str], None],
    watch: Callable[[int], None],
    went_on: Callable[[float], None],
    sites: Sites | None = None,
) -> Generator:
    """Engines for a trainer, each of which comes up again after a death.

    ``tell``, ``watch`` and ``went_on``: see ``Engines``, as ``notify``, ``watch`` and ``on_recovered``.
    """
    from overlap.generate import Engines

    makes = _makers(prepared, placement, scratch, log, sites or Sites(prepared, placement, tell), standalone=False)
    return Engines(makes, sleeps=placement.sleeps, notify=tell, watch=watch, on_recovered=went_on)


def _makers(
    prepared: Prepared, placement: Placement, scratch: Path, log: Path, sites: Sites, *, standalone: bool
) -> Sequence[Callable[[], Generator]]:
    """One function for each seat, which makes an engine there."""
    from overlap.generate import EngineClient

    count = len(placement.engines)
    return [
        partial(
            EngineClient,
            prepared.cfg,
            prepared.policy,
            scratch,
            standalone=standalone,
            log=engine_log(log, engine, alone=count == 1),
            placement=placement,
            engine=engine,
            site=sites.of_engine(engine),
        )
        for engine in range(count)
    ]


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
    again after a death; ``tell`` and ``watch``: see ``Engines``, as ``notify`` and ``watch``.
    """
    from overlap.generate import RESTARTS, Engines

    makes = _makers(prepared, placement, scratch, log, Sites(prepared, placement, tell), standalone=True)
    return Engines(makes, policy=RESTARTS if placement.nodes else None, serving=True, notify=tell, watch=watch)


class Sites:
    """Where the engines and learner ranks of a run live, and go on living when a node is gone."""

    def __init__(self, prepared: Prepared, placement: Placement, tell: Callable[[str], None]) -> None:
        self._prepared, self._placement, self._tell = prepared, placement, tell

    def of_engine(self, engine: int) -> EngineSite | None:
        """None: on this machine."""
        if not self._placement.engines[engine].node:
            return None
        from overlap.cluster import FarSite

        return FarSite(self._fleet, self._berths)

    def of_ranks(self) -> RankSite | None:
        """None: all of them are on this machine."""
        if not self._placement.rank_nodes:
            return None
        from overlap.cluster import RankSite

        critic = [self._prepared.critic] if self._prepared.critic else []
        return RankSite(self._made(*critic), self._berths, self._tell)

    def _made(self, *more: Path) -> RayFleet:
        from overlap.cluster import RayFleet  # imports Ray

        cfg = self._prepared.cfg
        return RayFleet(cluster_of(cfg), cfg.run.device, self._prepared.policy, *more)

    @cached_property
    def _fleet(self) -> RayFleet:
        return self._made()

    @cached_property
    def _berths(self) -> Berths:
        from overlap.cluster import Berths

        return Berths(self._prepared.cfg, self._fleet, self._tell, self._fits)

    def _fits(self, seat: EngineSeat, node: NodeDevices) -> bool:
        asked = PlannedRun(self._prepared.cfg, read_shape(self._prepared.policy))
        return fits_on(asked, self._placement, seat, node)


def learner_of(prepared: Prepared, placement: Placement, scratch: Path, *, log: Path, sites: Sites) -> ProcessLearner:
    """The learner of a run."""
    from overlap.learner import ProcessLearner

    cfg = prepared.cfg
    return ProcessLearner(
        cfg,
        prepared.policy,
        scratch,
        critic=prepared.critic,
        log=log,
        total_updates=cfg.run.steps * cfg.learn.updates_per_step,
        placement=placement,
        site=sites.of_ranks(),
    )


def rolling(prepared: Prepared, engines: Generator, verifier: SandboxVerifier, scratch: Path) -> Generator:
    """The engines themselves, or, for a task of episodes, behind what rolls them out."""
    cfg, task = prepared.cfg, prepared.task
    rollout, gateway, name = getattr(task, "rollout", None), None, f"{type(task).__qualname__}.rollout"
    if rollout is None and not cfg.episode.command:
        return engines
    from overlap.server import ChatTemplate, Gateway, Harness, episodes  # imports a web server

    if cfg.episode.command:
        gateway, name = Gateway(), "episode.command"
        decode = prepared.tokenizer.decode
        owing = cast("HarnessTask", task)
        rollout = Harness(cfg.episode.command, owing, gateway, scratch, lambda prompt: decode(list(prompt.token_ids)))
    template, packages = ChatTemplate(prepared.tokenizer), tuple(task.packages)
    return episodes(cfg, engines, template, rollout, name, verifier.judge, gateway, packages)


def sandbox_verifier(
    prepared: Prepared, placement: Placement, scratch: Path, *, log: Path, tell: Callable[[str], None]
) -> SandboxVerifier:
    """The pool of sandboxes for the task of a run, on this machine or on the nodes of its cluster, beside its engines
    there.
    """
    from overlap.verify import SandboxVerifier

    cfg, task = prepared.cfg, prepared.task
    pool = cluster_pool(cfg, placement, tuple(task.packages), tell) if cfg.cluster.address else None
    return SandboxVerifier(cfg, task, log=log, scratch=scratch, tell=tell, pool=pool)


def bound_cores(placement: Placement, node: str) -> int:
    """Cores of another node than the driver's that engines are bound to, and one for each learner rank there, which
    has more while it takes a step.
    """
    return sum(len(worker) for seat in placement.on(node) for worker in seat.cores) + len(placement.ranks_on(node))


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
    folder = RunFile.ENGINES.of(log.parent)
    folder.mkdir(exist_ok=True)
    return folder / f"{engine}.log"
