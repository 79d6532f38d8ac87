"""Trains a learner from the samples that a run has kept; no engine and no verifier is started.

trajectories.jsonl ──▶ SavedGenerator, SavedVerifier ──▶ the same loop ──▶ learner; its weights are sent nowhere

What is learned depends on the file and the configuration alone. No engine serves the weights, so there is no parity to
check: where the loop compares log-probs, both sides give the same number.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from overlap.config.fields import Config
from overlap.config.load import check_run_version
from overlap.core import Learner, Prompt, Request, Scored, Trajectory, WeightUpdate
from overlap.core.clock import now
from overlap.core.errors import ConfigError
from overlap.core.interfaces import ProcesslessEngine, ProcesslessVerifier
from overlap.pipeline.assemble import Assembler
from overlap.pipeline.prompts import PromptStream
from overlap.record.kept_samples import KeptSamples
from overlap.record.ownership import find_run_file, resolve
from overlap.record.run_files import RunFile

NEEDS = ("run.eval_samples=0", "run.eval_every=0", "run.samples=some", "verify.workers=1")
"""Settings of a run without engine and verifier, whatever those of the run that kept the samples were."""


def rollouts_in(where: str) -> tuple[Path, Path | None]:
    """The file of kept samples that ``where``, a run directory or the file itself, names; and the ``config.yaml`` that
    is beside it, if there is one. Raises ConfigError.
    """
    named = resolve(where)
    if not os.path.isfile(named):
        way_out = "keep samples by run.samples=all"
        named = find_run_file(where, RunFile.TRAJECTORIES, field="--from-rollouts", way_out=way_out)
    config = RunFile.CONFIG.of(named.parent)
    if not config.is_file():
        return named, None
    if named.name == RunFile.TRAJECTORIES.filename:  # beside other files is a configuration of the user's
        check_run_version(config)
    return named, config


def check_rollouts(rollouts: KeptSamples, cfg: Config, data: str, prompts: Sequence[Prompt]) -> None:
    """Refuse samples of other prompts than ``prompts``, whose digest is ``data``, or that a run by ``cfg`` could not
    learn from as they come: in another order, too few, or of another age than is promised. Raises ConfigError.
    """
    if rollouts.data != data:
        way_out = "its samples answer other prompts than this run asks; use the data and the policy of that run"
        raise ConfigError("--from-rollouts", str(rollouts.path), way_out)
    if cfg.run.eval_samples:
        way_out = "there is no engine to evaluate with: use 0 with --from-rollouts"
        raise ConfigError("run.eval_samples", cfg.run.eval_samples, way_out)
    steps = _steps(rollouts, cfg, PromptStream.of(cfg, prompts))
    if steps < cfg.run.steps:
        way_out = f"{rollouts.path} has the samples of {steps} steps: ask for at most that number"
        raise ConfigError("run.steps", cfg.run.steps, way_out)


def _steps(rollouts: KeptSamples, cfg: Config, prompts: PromptStream) -> int:
    """Count the steps that the samples make, up to ``run.steps``."""
    assembler, version, step = Assembler(cfg), 0, 0
    for group, prompt in enumerate(prompts):
        samples = [rollouts.known.get((group, k)) for k in range(cfg.rollout.samples_per_group)]
        if step == cfg.run.steps or None in samples:
            break
        assembler.expect(group, prompt)
        for scored in samples:
            _check_prompt(cast(Scored, scored), prompt, rollouts)
            assembler.add(cast(Scored, scored))
        while (groups := assembler.next_step()) is not None:
            prompts.note(groups)
            kept = [s for g in groups if not g.dropped for s in g.samples]
            step += 1
            for age in (version - s.trajectory.version_min for s in kept if s.trajectory.spans):
                _check_age(age, step, cfg)
            version += bool(kept)
    return step


def _check_prompt(scored: Scored, prompt: Prompt, rollouts: KeptSamples) -> None:
    request = scored.trajectory.request
    if request.prompt.id != prompt.id:
        way_out = f"group {request.group} answers {request.prompt.id!r}, and this run would ask {prompt.id!r} there: "
        way_out += "use run.seed of that run, and with data.drop_solved that, groups_per_step and max_staleness of it"
        raise ConfigError("--from-rollouts", str(rollouts.path), way_out)


def _check_age(age: int, step: int, cfg: Config) -> None:
    staleness, groups = cfg.rollout.max_staleness, cfg.rollout.groups_per_step
    if age < 0:
        way_out = f"step {step} would learn from later policies than its own: use the groups of the run that was kept"
        raise ConfigError("rollout.groups_per_step", groups, way_out)
    if age > staleness:
        way_out = f"samples of step {step} are {age} versions old: use {age} or more, or fewer steps"
        raise ConfigError("rollout.max_staleness", staleness, way_out)


class SavedGenerator(ProcesslessEngine):
    """Gives back the response of (group, sample), its tokens and log-probs as they were, at once."""

    def __init__(self, rollouts: KeptSamples) -> None:
        super().__init__()
        self._rollouts = rollouts

    async def generate(self, request: Request) -> Trajectory:
        """The kept response; an empty one with finish "abort" for others, such as the loop's parity probe."""
        began = now()
        if request.place not in self._rollouts.known:
            return Trajectory(request, (), (), "", "abort", (), began, began)
        trajectory = self._rollouts.scored(request, began).trajectory
        return replace(trajectory, started_s=began, finished_s=now())

    async def load(self, update: WeightUpdate) -> None:
        return None

    async def logprobs(self, token_ids: Sequence[int]) -> list[float]:
        return [0.0]


class SavedVerifier(ProcesslessVerifier):
    """Gives back the reward of (group, sample), and why there is none where there is none."""

    def __init__(self, rollouts: KeptSamples) -> None:
        super().__init__()
        self._rollouts = rollouts

    async def score(self, trajectory: Trajectory) -> Scored:
        request, began = trajectory.request, now()
        if request.place not in self._rollouts.known:
            return Scored(trajectory, None, None, f"not in {self._rollouts.path.name}", began, began, began)
        kept = self._rollouts.scored(request, began)
        return Scored(trajectory, kept.reward, kept.judgement, kept.failure, began, began, now())


class UnpublishedLearner:
    """Wraps a learner, so that its weights are sent nowhere."""

    def __init__(self, inner: Learner) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def publish(self, version: int) -> WeightUpdate:
        return WeightUpdate(version, "none", {})

    async def transmit(self, update: WeightUpdate) -> None:
        return None

    async def retire(self, update: WeightUpdate, *, loaded: bool = True) -> None:
        return None

    async def logprobs(self, token_ids: Sequence[int]) -> list[float]:
        return [0.0]
