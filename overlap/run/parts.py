"""Makes the parts of a run: engines, learner and verifier, on this machine or on the nodes of a cluster."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from overlap.config.fields import Config
from overlap.core import Generator
from overlap.pipeline.learning import Components
from overlap.placement.devices import NodeDevices
from overlap.placement.node_seats import fits_on
from overlap.placement.planned_run import PlannedRun
from overlap.placement.seats import EngineSeat, Placement
from overlap.placement.shapes import read_shape
from overlap.record.run_files import RunFile
from overlap.run.run_inputs import RunInputs
from overlap.run.seating import cluster_at, cluster_pool

if TYPE_CHECKING:
    from overlap.cluster.fleet import RayFleet
    from overlap.cluster.nodes import RayNodeInfo
    from overlap.cluster.pool import ClusterPool
    from overlap.cluster.sites import RankSite
    from overlap.generate.service import EngineSite
    from overlap.learner.learner import ProcessLearner
    from overlap.record.kept_samples import KeptSamples
    from overlap.verify.verifier import SandboxVerifier


@dataclass
class PartFactory:
    """Makes parts; none of them is started. Engines and learner ranks on other nodes share one connection to the
    cluster and know of each other's places.
    """

    inputs: RunInputs
    placement: Placement
    scratch: Path
    log: Path
    """File to which the parts' processes print."""
    report_line: Callable[[str], None] = print
    watch_pid: Callable[[int], None] = lambda pid: None
    """Called with the id of each process that is started after the parts are up."""

    @property
    def cfg(self) -> Config:
        """With as many engines and sequences as the devices gave."""
        return self.placement.counted(self.inputs.cfg)

    def training_parts(self, rollouts: KeptSamples | None, on_recovered: Callable[[float], None]) -> Components:
        """Engines, verifier and learner of a run; what ``rollouts`` has kept takes the place of the first two."""
        if rollouts is not None:
            from overlap.run.kept_rollouts import SavedGenerator, SavedVerifier

            return Components(SavedGenerator(rollouts), SavedVerifier(rollouts), self.learner())
        verifier = self.verifier()
        engines = self.with_episodes(self.training_engines(on_recovered), verifier)
        return Components(engines, verifier, self.learner())

    def training_engines(self, on_recovered: Callable[[float], None] = lambda seconds: None) -> Generator:
        """Engines beside a learner. Each is started again after a death; ``on_recovered`` gets the seconds without."""
        return self._engines(standalone=False, sleeps=self.placement.sleeps, on_recovered=on_recovered)

    def serving_engines(self) -> Generator:
        """Engines that serve the policy's own weights, without a learner. On the nodes of a cluster, which may be lost,
        each is started again after a death.
        """
        from overlap.generate.restart import RESTARTS

        return self._engines(standalone=True, serving=True, policy=RESTARTS if self.placement.nodes else None)

    def _engines(self, *, standalone: bool, **how: Any) -> Generator:
        """An engine on each seat."""
        from overlap.generate.client import EngineClient
        from overlap.generate.engines import Engines

        makes = [
            partial(
                EngineClient,
                self.cfg,
                self.inputs.policy,
                self.scratch,
                standalone=standalone,
                log=self._engine_log(engine),
                placement=self.placement,
                engine=engine,
                site=self.engine_site(engine),
            )
            for engine in range(len(self.placement.engines))
        ]
        return Engines(makes, notify=self.report_line, watch=self.watch_pid, **how)

    def _engine_log(self, engine: int) -> Path:
        """The output of a single engine goes to the log of the run, that of each of several to a file of its own."""
        if len(self.placement.engines) == 1:
            return self.log
        folder = RunFile.ENGINES.of(self.log.parent)
        folder.mkdir(exist_ok=True)
        return folder / f"{engine}.log"

    def learner(self) -> ProcessLearner:
        from overlap.learner.learner import ProcessLearner

        cfg = self.cfg
        return ProcessLearner(
            cfg,
            self.inputs.policy,
            self.scratch,
            critic=self.inputs.critic,
            reference=self.inputs.reference,
            log=self.log,
            total_updates=cfg.run.steps * cfg.learn.updates_per_step,
            placement=self.placement,
            site=self.rank_site(),
        )

    def verifier(self) -> SandboxVerifier:
        """The pool of sandboxes; with a cluster, over its nodes, beside the engines there."""
        from overlap.verify.verifier import SandboxVerifier

        cfg, task = self.cfg, self.inputs.task
        pool = self._cluster_pool if cfg.cluster.address else None
        return SandboxVerifier(cfg, task, log=self.log, scratch=self.scratch, notify=self.report_line, pool=pool)

    def _cluster_pool(self) -> ClusterPool:
        cfg = self.cfg
        cluster_at(cfg.cluster.address).log = self.log

        def bound(node: RayNodeInfo) -> int:
            return bound_cores(self.placement, node.name)

        return cluster_pool(cfg, self.inputs.task, self.report_line, cfg.verify.workers, bound)

    def with_episodes(self, engines: Generator, verifier: SandboxVerifier) -> Generator:
        """The engines themselves, or, for a task with rollouts of several turns, what runs its episodes on them."""
        cfg, tokenizer = self.cfg, self.inputs.tokenizer
        task: Any = self.inputs.task
        rollout, gateway, name = getattr(task, "rollout", None), None, f"{type(task).__qualname__}.rollout"
        command = cfg.episode.command
        if rollout is None and not command:
            return engines
        from overlap.server.episodes import episodes
        from overlap.server.gateway import Gateway
        from overlap.server.harness import HarnessRollout
        from overlap.server.harness_jail import agent_space
        from overlap.server.template import ChatTemplate  # imports a web server

        if getattr(task, "endpoint", False):
            gateway = Gateway()
        if command:
            gateway, name = Gateway(), "episode.command"
            rollout = HarnessRollout(
                command,
                task,
                gateway,
                self.scratch,
                lambda prompt: tokenizer.decode(list(prompt.token_ids)),
                agent_space(cfg),
            )
        return episodes(
            cfg,
            engines,
            ChatTemplate(tokenizer, cfg.context_tokens),
            rollout,
            name,
            verifier.judge,
            gateway,
            tuple(task.packages),
            None if command or getattr(task, "resources", None) is None else task.resources(),
            self.report_line,
        )

    def engine_site(self, engine: int) -> EngineSite | None:
        """Site at which an engine's process is started; None: on this machine."""
        if not self.placement.engines[engine].node:
            return None
        from overlap.cluster.sites import FarSite

        return FarSite(self._fleet, self.inputs.policy)

    def rank_site(self) -> RankSite | None:
        """Site at which the processes of the learner ranks are started; None: all of them on this machine."""
        if not self.placement.rank_nodes:
            return None
        from overlap.cluster.sites import RankSite

        beside = [path for path in (self.inputs.critic, self.inputs.reference) if path]
        return RankSite(self._fleet, self.inputs.policy, *beside)

    @cached_property
    def _fleet(self) -> RayFleet:
        from overlap.cluster.fleet import RayFleet

        cfg = self.cfg
        cluster_at(cfg.cluster.address).log = self.log
        return RayFleet(cfg, cluster_at(cfg.cluster.address), self.placement.engines, self.report_line, self._fits)

    def _fits(self, seat: EngineSeat, node: NodeDevices) -> bool:
        asked = PlannedRun(self.cfg, read_shape(self.inputs.policy))
        return fits_on(asked, self.placement, seat, node)


def before_starts(generator: Generator, placement: Placement) -> Mapping[str, Callable[[], Awaitable[None]]]:
    """Work to do before a part of that name starts: where engines and learner take turns on GPUs, the engines start
    first and sleep, because vLLM counts memory that others allocate there meanwhile as its own.
    """

    async def start_engines() -> None:
        await generator.start()
        await generator.sleep()

    return {"learner": start_engines} if placement.sleeps else {}


def bound_cores(placement: Placement, node: str) -> int:
    """Cores of another node than the driver's that engines are bound to, and one for each learner rank there, which
    has more while it takes a step.
    """
    return sum(len(worker) for seat in placement.on(node) for worker in seat.cores) + len(placement.ranks_on(node))
