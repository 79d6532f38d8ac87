"""What a run writes to its disk, against what is free there: a full disk would take its weights at the end."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from overlap.config.fields import Config
from overlap.core import KEPT_BYTES, SAMPLE_BYTES, TOKEN_BYTES
from overlap.errors import ConfigError, count_of
from overlap.placement.activations import trained_parameters
from overlap.placement.planned_run import PlannedRun
from overlap.record.ownership import resolve
from overlap.record.run_files import RunFile

GIB = 2**30
_STATE = 12
"""Bytes of a trained parameter in a checkpoint, beside the parameter: float32 weights and the two moments of AdamW."""
_REPLACED = (RunFile.POLICY, RunFile.BEST, RunFile.CHECKPOINTS, RunFile.TRAJECTORIES)


@dataclass(frozen=True, slots=True)
class DiskPlan:
    """Bytes that a run needs at one moment: ``policies`` of the size ``policy`` (the final one, and with
    ``run.eval_every`` the best one beside its successor), ``checkpoints`` of the size ``checkpoint`` (those that are
    kept, and a new one), and ``samples`` at most. ``free`` counts what an earlier part of the run has
    there.
    """

    folder: Path
    free: int
    policy: int
    policies: int
    checkpoint: int = 0
    checkpoints: int = 0
    samples: int = 0

    @property
    def certain(self) -> int:
        """Without samples, whose length is not known."""
        return self.policy * self.policies + self.checkpoint * self.checkpoints

    @property
    def line(self) -> str:
        """For a person."""
        parts = [f"policy {_readable(self.policy)}" + (f" x {self.policies}" if self.policies > 1 else "")]
        if self.checkpoints:
            each = _readable(self.checkpoint)
            parts.append(f"{count_of(self.checkpoints, 'checkpoint')} of {each}")
        if self.samples:
            parts.append(f"samples up to {_readable(self.samples)}")
        most = self.certain + self.samples
        text = f"up to {_gib(most)} of {_gib(self.free)} GiB free in {self.folder} ({', '.join(parts)})"
        return text + ("; the samples may not fit: use fewer run.steps" if most > self.free >= self.certain else "")

    def check(self, run_dir: str) -> None:
        """Raise ConfigError where the policy and the checkpoints cannot fit."""
        if self.certain <= self.free:
            return
        fewer = ", fewer checkpoints (run.keep_last, run.save_every=0)" if self.checkpoints else ""
        what = "policy and checkpoints take" if fewer else "policy takes"
        room = f"{self.folder} has {_gib(self.free)} free: free some, or use another disk{fewer}"
        raise ConfigError("run.dir", run_dir, f"its {what} {_gib(self.certain)} GiB and {room}")


def disk_plan(asked: PlannedRun, heldout: int) -> DiskPlan:
    """What the run that is ``asked`` for writes, with ``heldout`` prompts to evaluate on. Raises ConfigError for a
    ``run.dir`` that is none.
    """
    cfg, run = asked.cfg, asked.cfg.run
    keeps_best = bool(run.eval_every and run.eval_samples and heldout)
    path = resolve(run.dir)
    folder = next(place for place in (path, *path.parents) if place.is_dir())
    made = run.steps // run.save_every if run.save_every else 0
    return DiskPlan(
        folder,
        shutil.disk_usage(folder).free + sum(_size(file.of(path)) for file in _REPLACED),
        asked.weights,
        3 if keeps_best else 1,
        _state_bytes(asked) if made else 0,
        min(made, run.keep_last + 1 + keeps_best),
        _sample_bytes(cfg),
    )


def _sample_bytes(cfg: Config) -> int:
    """Of ``trajectories.jsonl``, without the samples of evaluations."""
    each = TOKEN_BYTES * cfg.context_tokens + SAMPLE_BYTES
    whole = cfg.samples_per_step * each
    some = min(whole, max(KEPT_BYTES, cfg.rollout.samples_per_group * each))
    return cfg.run.steps * {"all": whole, "some": some, "none": 0}[cfg.run.samples]


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


def _readable(count: int) -> str:
    """For instance "1.8 GiB", and "1.4 MiB" of what is below a tenth of it."""
    return f"{count / GIB:.1f} GiB" if count >= GIB / 10 else f"{count / 2**20:.2g} MiB"


def _gib(count: int) -> str:
    return f"{count / GIB:.1f}" if count >= GIB / 10 else f"{count / GIB:.2g}"
