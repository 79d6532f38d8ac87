"""File beside the backend's files in a saved learner state: enough to refuse a state that does not fit."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from overlap.config.fields import Config
from overlap.core.errors import ConfigError
from overlap.policy.check import policy_digest

_FILE = "learner.json"
TAG = "deepspeed"
"""Folder of the policy's shards in a saved state."""
CRITIC_TAG = "critic"
"""The same of the critic, which also has its head there."""
_WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt", ".pth", ".index.json", ".msgpack", ".h5", ".onnx")


@dataclass(frozen=True, slots=True)
class LearnerState:
    """Policy version, and optimizer steps taken (they set the learning rate). ``ranks`` and ``zero_stage`` say how the
    files are sharded; other ranks and stages can read them, too. ``critic_updates``: optimizer steps of the critic,
    None without one. With a ``lora_rank`` the state has adapters instead of weights; these are in the checkpoint whose
    digest is ``base``.
    """

    version: int
    updates: int
    ranks: int
    zero_stage: int
    critic_updates: int | None = None
    lora_rank: int = 0
    base: str = ""

    def fits(self, cfg: Config) -> bool:
        """True when the files are sharded as those of a run by ``cfg``."""
        return (self.ranks, self.zero_stage) == (cfg.learn.ranks, cfg.learn.zero_stage)


def write_state(folder: Path, cfg: Config, state: LearnerState) -> None:
    """Write beside the shards in ``folder``. Raises OSError."""
    (folder / _FILE).write_text(json.dumps({"dtype": cfg.dtype, **asdict(state)}), encoding="utf-8")


def copy_beside(policy: Path, folder: Path) -> None:
    """Copy what a checkpoint has besides weights (tokenizer, chat template), unless it is there. Raises OSError."""
    for file in policy.iterdir():
        if file.is_file() and not file.name.endswith(_WEIGHTS) and not (folder / file.name).exists():
            shutil.copyfile(file, folder / file.name)


def read_state(folder: Path, cfg: Config) -> LearnerState:
    """The learner state in ``folder``. Raises ConfigError where there is none, or where its number type, adapters or
    critic are not those of a run by ``cfg``.
    """
    try:
        found = json.loads((folder / _FILE).read_text(encoding="utf-8"))
        dtype = found.pop("dtype")
        state = LearnerState(**found)
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise ConfigError(
            "checkpoint", str(folder), f"has no learner state that can be read ({exc}); choose another one"
        ) from exc
    if dtype != cfg.dtype:
        way_out = f"was written with model.dtype={dtype}: resume with that, this run has {cfg.dtype}"
        raise ConfigError("checkpoint", str(folder), way_out)
    if state.lora_rank != cfg.learn.lora_rank:
        way_out = f"was written with learn.lora_rank={state.lora_rank}: resume with that, this run has"
        raise ConfigError("checkpoint", str(folder), f"{way_out} {cfg.learn.lora_rank}")
    has_critic = state.critic_updates is not None
    if (cfg.learn.advantage == "gae") != has_critic:
        has = "has a critic: resume with" if has_critic else "has no critic: resume without"
        raise ConfigError("checkpoint", str(folder), f"{has} learn.advantage=gae, this run has {cfg.learn.advantage}")
    return state


def check_base(folder: Path, state: LearnerState, policy: Path) -> None:
    """Raise ConfigError where adapters of ``state``, which is in ``folder``, were trained on another ``policy``."""
    if state.lora_rank and state.base != policy_digest(policy):
        way_out = f"the adapters in {folder} were trained on another policy: name the one that the run started from"
        raise ConfigError("model.policy", str(policy), way_out)
