"""Bytes that a run writes to its disk, against the free bytes: on a full disk its last weights would be lost."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from overlap.config.fields import Config
from overlap.core.errors import ConfigError
from overlap.core.kept_groups import KEPT_BYTES, SAMPLE_BYTES, TOKEN_BYTES
from overlap.placement.activations import trained_parameters
from overlap.placement.planned_run import PlannedRun
from overlap.placement.table import amount
from overlap.record.ownership import resolve
from overlap.record.run_files import RunFile

_STATE = 12
"""Bytes of a trained parameter in a checkpoint, beside the parameter: float32 weights and the two moments of AdamW."""
_REPLACED = (RunFile.POLICY, RunFile.BEST, RunFile.CHECKPOINTS, RunFile.TRAJECTORIES)


@dataclass(frozen=True, slots=True)
class DiskNeed:
    """Bytes that a run needs at one moment: what is ``certain``, and what samples may take ``at_most``, whose length is
    not known. ``free`` counts what an earlier part of the run has there.
    """

    folder: Path
    free: int
    certain: Mapping[str, int]
    at_most: Mapping[str, int]

    @property
    def line(self) -> str:
        """Text for a person."""
        certain = sum(self.certain.values())
        most = certain + sum(self.at_most.values())
        text = f"{self.folder} {amount(certain, most, self.free)} ({', '.join([*self.certain, *self.at_most])})"
        return text + ("; the samples may not fit: use fewer run.steps" if most > self.free >= certain else "")

    def check(self, run_dir: str) -> None:
        """Raise ConfigError where the policy and the checkpoints cannot fit."""
        certain = sum(self.certain.values())
        if certain > self.free:
            fewer = "fewer checkpoints (run.keep_last, run.save_every=0)" if len(self.certain) > 1 else "another disk"
            told = f"{self.folder} {amount(certain, certain, self.free)} ({', '.join(self.certain)}): use {fewer}"
            raise ConfigError("run.dir", run_dir, told)


def disk_need(asked: PlannedRun, heldout: int) -> DiskNeed:
    """Bytes that the run that is ``asked`` for writes, with ``heldout`` prompts to evaluate on: the final policy, with
    ``run.eval_every`` the best one beside its successor, the checkpoints that are kept and a new one, and samples.
    Raises ConfigError for a ``run.dir`` that is none.
    """
    cfg, run = asked.cfg, asked.cfg.run
    keeps_best = bool(run.eval_every and run.eval_samples and heldout)
    path = resolve(run.dir)
    folder = next(place for place in (path, *path.parents) if place.is_dir())
    made = min(run.steps // run.save_every, run.keep_last + 1 + keeps_best) if run.save_every else 0
    policies = 3 if keeps_best else 1
    certain = {"policy" if policies == 1 else f"{policies} policies": asked.weights * policies}
    if made:
        certain[f"{made} checkpoint{'s' * (made > 1)}"] = made * _state_bytes(asked)
    at_most = {"samples": _sample_bytes(cfg)} if run.samples != "none" else {}
    free = shutil.disk_usage(folder).free + sum(_size(file.of(path)) for file in _REPLACED)
    return DiskNeed(folder, free, certain, at_most)


def _sample_bytes(cfg: Config) -> int:
    """Bytes of ``trajectories.jsonl``, without the samples of evaluations."""
    each = TOKEN_BYTES * cfg.context_tokens + SAMPLE_BYTES
    whole = cfg.samples_per_step * each
    some = min(whole, max(KEPT_BYTES, cfg.rollout.samples_per_group * each))
    return cfg.run.steps * (whole if cfg.run.samples == "all" else some)


def _state_bytes(asked: PlannedRun) -> int:
    policy, rank = asked.policy, asked.cfg.learn.lora_rank
    if rank:
        size = trained_parameters(policy.decoder, policy.parameters, rank) * (4 + _STATE)
    else:
        size = policy.parameters * (asked.width + _STATE)
    return size + (asked.critic.trunk * (asked.width + _STATE) if asked.critic is not None else 0)


def _size(path: Path) -> int:
    """Bytes of a file or of all files below a folder; 0 where there is none."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())
