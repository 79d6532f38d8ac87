"""An answer that carries the reward of its environment: the policy's text, and a last line of JSON.

    The answer is 8.
    {"reward": 1.0, "metrics": {"exact": 1.0}, "seal": "5f1c..."}

An episode that a budget ended has no such line, and its answer is the policy's own words: so a line counts only with
the seal, which is in the data of the prompt, and which no policy sees.
"""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, cast

from overlap.config.fields import Config
from overlap.core.errors import ConfigError
from overlap.server.episodes import HarnessCrashed


class EnvironmentFault(HarnessCrashed):
    """The environment failed, and not the policy: the episode has no reward."""


def refuse_command(cfg: Config) -> None:
    """Raise ConfigError where an agent program is to roll out what the environment does."""
    if cfg.episode.command:
        way_out = f"{cfg.data.task} rolls its episodes out itself: leave it out"
        raise ConfigError("episode.command", cfg.episode.command, way_out)


class Seal:
    """Secret that marks the lines of a run. An opaque object, so that the digest of the data does not depend on it."""

    __slots__ = ("word",)

    def __init__(self) -> None:
        self.word = secrets.token_hex(16)


def is_finite(value: object) -> bool:
    """Return whether a value is a number that a float can hold; an integer of JSON may be too large for one."""
    return isinstance(value, int | float) and abs(value) <= sys.float_info.max


class Range(NamedTuple):
    """The rewards that count. None: no bound on this side."""

    least: float | None = None
    most: float | None = None

    def holds(self, reward: float) -> bool:
        return (self.least is None or self.least <= reward) and (self.most is None or reward <= self.most)

    def __str__(self) -> str:
        least, most = ("any" if bound is None else f"{bound:g}" for bound in self)
        return f"from {least} to {most} (data.options.reward_least, reward_most)"


ANY: Final = Range()
SHARE: Final = Range(0.0, 1.0)


def scored(said: str, reward: object, data: Mapping[str, Any], within: Range = ANY, **more: Any) -> str:
    """The answer to the prompt with this ``data``. Raises EnvironmentFault where the reward is no finite number, or not
    ``within`` the range.
    """
    if isinstance(reward, bool):
        reward = float(reward)
    if not is_finite(reward):
        raise EnvironmentFault(f"the environment gave {reward!r} as the reward; it must be a finite number")
    if not within.holds(cast(float, reward)):
        raise EnvironmentFault(f"the environment gave {reward!r} as the reward, which is none {within}")
    return f"{said}\n{json.dumps({'reward': float(cast(float, reward)), **more, 'seal': data['seal'].word})}"


def score_of(answer: str, data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the last line's JSON; empty for an answer that has none, or not with the seal of the prompt's ``data``."""
    try:
        found = json.loads(answer.rpartition("\n")[2])
    except (ValueError, RecursionError):
        return {}
    sealed = isinstance(found, dict) and found.get("seal") == data["seal"].word
    return found if sealed and isinstance(found.get("reward"), float) else {}


def given_reward(answer: str, data: Mapping[str, Any]) -> float | None:
    """The reward; None where the environment gave none."""
    reward = score_of(answer, data).get("reward")
    return reward if isinstance(reward, float) else None
