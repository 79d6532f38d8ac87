"""GRPO and PPO steps in processes of their own, so that no backward pass blocks the loop that feeds the engine.

Consumes a Batch, produces a StepReport and, on request, a WeightUpdate; waits for its ranks; woken by their replies.
The driver's side only flattens batches (in a thread) and reads and writes sockets. The ranks run ``rank``; the loss is
in ``losses``, the layout of a batch in ``micro_batch``.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from overlap.config.fields import Config
from overlap.config.learn import LearnConfig
from overlap.core import Batch, StepReport, WeightUpdate, kept_groups
from overlap.core.aio import shielded_thread
from overlap.core.errors import LearnerError, StaleBatchError
from overlap.learner.kept_logprobs import join_kept
from overlap.learner.micro_batch import flatten
from overlap.learner.processes import RankLife, RankProcesses, RankSpec, Site
from overlap.learner.saved_state import check_base, read_state
from overlap.placement.seats import Placement, place_here
from overlap.process.atomic import partial_path, remove_path, replace, sync

START_S = 1800.0
"""Reading a large checkpoint from a slow disk on every rank, and partitioning it."""
STEP_S = 4 * 3600.0
"""A step of a 14B model on long contexts takes up to an hour. Dead ranks are noticed at once; this ends a hang."""
SYNC_S = 600.0
"""Gathering and sending all weights, and other calls of seconds."""
SAVE_S = 3600.0
"""Writing or reading a sharded state of a large model on a network file system."""


class ProcessLearner:
    """Implements ``overlap.core.Learner``. Constructing it starts nothing.

    ``policy`` is a Hugging Face checkpoint directory, ``critic`` another one that a critic starts from, ``reference``
    that of the reference policy (default of both: the policy's), ``scratch`` the run's directory for short-lived files,
    ``log`` the file of the ranks' output, ``total_updates`` the number of optimizer steps that the learning-rate
    schedule spans. ``placement`` gives each rank its device; by default the ranks are placed on this machine. ``site``:
    the ranks' machines, by default this one.
    """

    def __init__(
        self,
        cfg: Config,
        policy: Path,
        scratch: Path,
        *,
        critic: Path | None = None,
        reference: Path | None = None,
        log: Path | None = None,
        total_updates: int,
        placement: Placement | None = None,
        site: Site | None = None,
    ) -> None:
        self._cfg, self._policy, self._scratch = cfg, policy, scratch
        self._critic, self._reference = critic or policy, reference or policy
        self._log, self._total_updates, self._placement = log, total_updates, placement
        self._site = site
        self._ranks: RankProcesses | None = None
        self._version = 0
        self.shares = False
        """Learner and engine share GPUs; known when it has started."""

    async def start(self) -> None:
        """Start the ranks and load the policy. Raises LearnerError."""
        if self._ranks is not None:
            raise LearnerError("the learner was already started; create a new one")
        placement = self._placement or place_here(self._cfg)
        life = RankLife(self._scratch, self._log)
        spec = RankSpec(
            rank=0,
            rendezvous=life.folder.absolute() / "rendezvous",
            policy=self._policy.absolute(),
            critic=self._critic.absolute(),
            cfg=self._cfg,
            total_updates=self._total_updates,
            placement=placement,
            reference=self._reference.absolute(),
            imports=(*map(os.path.abspath, sys.path), os.getcwd()) if names_functions(self._cfg.learn) else (),
        )
        self._ranks = RankProcesses(spec, life, self._site)
        await self._ranks.start(START_S)
        self.shares = placement.sleeps

    async def step(self, batch: Batch) -> StepReport:
        """One learner step; the new policy is version ``batch.version + 1``.

        Raises StaleBatchError when a sample is older than ``rollout.max_staleness``, by the engine's own version
        spans, and LearnerError when there is nothing to learn from.
        """
        began = time.monotonic()
        truncated = self._cfg.learn.truncated
        if batch.version != self._version:
            raise LearnerError(f"batch.version={batch.version}, but the learner holds version {self._version}")
        if stale := batch.too_old(self._cfg.rollout.max_staleness):
            raise StaleBatchError(stale)
        kept = await asyncio.to_thread(kept_groups, batch) if self._cfg.run.samples != "none" else {}
        groups = await asyncio.to_thread(flatten, batch, truncated=truncated, kept=kept)
        if not groups:
            raise LearnerError(f"batch of step {batch.step} has no token to learn from: do not call step with it")
        version = self._version + 1
        answers = await self._running.call_all("step", groups, version, timeout_s=STEP_S)
        self._version = version
        logprobs = join_kept(batch, kept, [found for _, found in answers], bootstraps=truncated == "bootstrap")
        return StepReport(batch.step, version, time.monotonic() - began, answers[0][0], logprobs)

    async def sleep(self) -> None:
        """Give device memory to an engine on the same GPUs. Raises LearnerError."""
        if self.shares and self._cfg.learn.offload != "none":
            await self._running.call("sleep", timeout_s=SYNC_S)

    async def free(self, moment: str) -> float | None:
        """Free GiB of the first rank's GPU, where an engine shares it; logged as of ``moment``."""
        if not self.shares:
            return None
        gib: float | None = await self._running.call("free", moment, timeout_s=SYNC_S)
        return gib

    async def publish(self, version: int) -> WeightUpdate:
        """Gather the shards and make them ready for the engine. Raises LearnerError."""
        if version != self._version:
            raise LearnerError(f"version {version} was asked for, the learner holds version {self._version}")
        ranks = self._running
        backend, info = await ranks.call("publish", timeout_s=SYNC_S)
        info = await ranks.site.brought(ranks.life, info, version)
        return WeightUpdate(version, backend, info, self._chunks if backend == "ipc" else None)

    async def _chunks(self) -> AsyncGenerator[Mapping[str, Any], None]:
        """The weights that were published, a buffer at a time: the next one overwrites it."""
        first = True
        while (chunk := await self._running.call("chunk", first, timeout_s=SYNC_S)) is not None:
            yield chunk
            first = False

    async def transmit(self, update: WeightUpdate) -> None:
        """Send while the engine receives. Raises LearnerError."""
        if update.backend == "nccl":  # else the memory is the transfer
            await self._running.call("transmit", timeout_s=SYNC_S)

    async def retire(self, update: WeightUpdate, *, loaded: bool = True) -> None:
        """Free what ``publish`` made. Raises LearnerError."""
        await self._running.call("retire", loaded, timeout_s=SYNC_S)

    async def logprobs(self, token_ids: Sequence[int]) -> list[float]:
        """Log-probs [T-1] of tokens 1..T-1 at the sampling temperature, by the weights that would be published."""
        values: list[float] = await self._running.call("logprobs", tuple(token_ids), timeout_s=SYNC_S)
        return values

    async def save(self, path: Path, *, kind: Literal["policy", "state"]) -> int:
        """Write a Hugging Face checkpoint ("policy") or everything that a resume needs ("state"); returns its version.

        ``path`` holds the whole of it or what it held before. Raises RunDirError, after which the learner goes on, and
        LearnerError.
        """
        partial = partial_path(path)
        try:
            ranks = self._running
            async with ranks.saving(partial) as folders:
                each = [(folder, kind) for folder in folders]
                version: int = await ranks.call("save", timeout_s=SAVE_S, each=each)
            await asyncio.to_thread(sync, partial)
            await shielded_thread(replace, partial, path)
            return version
        finally:
            await asyncio.to_thread(remove_path, partial)

    async def restore(self, path: Path) -> None:
        """Load what ``save(kind="state")`` wrote, by any number of ranks and any ZeRO stage. Raises ConfigError when it
        is of another number type or its adapters are of another policy, LearnerError.
        """
        state = await asyncio.to_thread(read_state, path, self._cfg)
        await asyncio.to_thread(check_base, path, state, self._policy)
        ranks = self._running
        async with ranks.loading(path, recut=not state.fits(self._cfg)) as folders:
            await ranks.call("restore", timeout_s=SAVE_S, each=[(folder, state) for folder in folders])
        self._version = state.version

    async def wait_dead(self) -> None:
        """Wait while all ranks run. Raises LearnerError, with rank and cause, when one dies; returns when closed."""
        await self._running.life.wait_dead()

    def pids(self) -> tuple[int, ...]:
        """Pids of the ranks, and of what they started, that are alive."""
        return self._ranks.life.pids() if self._ranks is not None else ()

    async def close(self) -> None:
        """End the ranks and remove their files; safe to call twice or before ``start``."""
        if self._ranks is not None:
            await self._ranks.close()

    @property
    def _running(self) -> RankProcesses:
        if self._ranks is None:
            raise LearnerError("the learner was not started: await start() first")
        return self._ranks


def names_functions(learn: LearnConfig) -> bool:
    """True when loss or correction is a function of the user's."""
    return ":" in learn.loss or ":" in learn.correction


def check_functions(learn: LearnConfig) -> None:
    """Import and try loss and correction, if they are functions of the user's. Raises ConfigError."""
    if names_functions(learn):  # else the driver has no use for torch
        from overlap.learner.correction import correction
        from overlap.learner.losses import policy_loss

        policy_loss(learn.loss)
        correction(learn.correction)
