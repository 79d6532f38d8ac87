"""An answer that carries the reward that its environment gave: what was said, and a last line of JSON.

    The answer is 8.
    {"reward": 1.0, "metrics": {"exact": 1.0}}

The line is always written by us and always the last, so nothing that a policy says can take its place.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from overlap.config import Config
from overlap.errors import ConfigError
from overlap.server import HarnessCrashed


class EnvironmentFault(HarnessCrashed):
    """The environment failed, and not the policy: the episode has no reward."""


def refuse_command(cfg: Config) -> None:
    """Raise ConfigError where an agent program is to roll out what the environment does."""
    if cfg.episode.command:
        way_out = f"{cfg.data.task} rolls its episodes out itself: leave it out"
        raise ConfigError("episode.command", cfg.episode.command, way_out)


def scored(said: str, reward: object, **more: Any) -> str:
    """The answer. Raises EnvironmentFault where the reward is no finite number."""
    if isinstance(reward, bool):
        reward = float(reward)
    if not isinstance(reward, int | float) or not math.isfinite(reward):
        raise EnvironmentFault(f"the environment gave {reward!r} as the reward; it must be a finite number")
    return f"{said}\n{json.dumps({'reward': float(reward), **more})}"


def score_of(answer: str) -> Mapping[str, Any]:
    """What the last line says; empty for an answer that has none, as of an episode that a budget ended."""
    try:
        found = json.loads(answer.rpartition("\n")[2])
    except ValueError:
        return {}
    return found if isinstance(found, dict) and isinstance(found.get("reward"), float) else {}


def given_reward(answer: str) -> float | None:
    """The reward; None where the environment gave none."""
    reward = score_of(answer).get("reward")
    return reward if isinstance(reward, float) else None
