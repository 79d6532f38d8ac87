"""Configurations of earlier runs: fields that they had and this version has not, and what a resumed run has changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from overlap.config.fields import Config
from overlap.config.learn import LearnConfig
from overlap.config.rules import MAY_CHANGE, defaults
from overlap.errors import ConfigError
from overlap.json_types import to_json_types


class Retired(NamedTuple):
    """A field of earlier versions: its ``default`` then, which has the effect of the defaults now, and the field that
    is in its place ``now``; or, for one without a place, what to do about other values.
    """

    default: Any
    now: str

    @property
    def moved(self) -> bool:
        """Whether it has a place now."""
        return " " not in self.now

    @property
    def way_out(self) -> str:
        """What to write instead."""
        return f"use {self.now}" if self.moved else self.now


RETIRED = {
    "learn.share_prompts": Retired("auto", "responses of a group always share their prompt; leave it out"),
    "learn.normalize_std": Retired(True, "learn.normalize_advantages"),
    "learn.is_cap": Retired(2.0, "learn.correction_bound"),
    "learn.tv_bound": Retired(0.2, "learn.correction_bound"),
    "learn.surrogate": Retired("ppo", "learn.loss"),
    "learn.sequence_ranks": Retired(1, "learn.sequence_parallel"),
    "critic.whiten": Retired(False, "learn.normalize_advantages"),
    "critic.clip": Retired(0.0, "the critic's loss is not clipped; leave it out"),
    "critic.lambda_value": Retired(1.0, "the critic is taught the reward itself (lambda 1); leave it out"),
    "critic.steps_alone": Retired(0, "critic.warmup_steps"),
    "verify.max_failure_share": Retired(0.05, "a run always stops above 5 %; leave it out"),
    "data.tests_per_problem": Retired(15, "data.options.tests_per_problem"),
    "data.preamble": Retired("contest", "data.options.preamble"),
    "data.packages": Retired([], "data.options.packages"),
    "model.episode_tokens": Retired(0, "episode.tokens"),
    "rollout.command": Retired("", "episode.command"),
    "rollout.turns": Retired(16, "episode.turns"),
    "rollout.episode_s": Retired(600.0, "episode.timeout_s"),
    "rollout.tool_parser": Retired("", "episode.tool_parser"),
    "rollout.reasoning_parser": Retired("", "episode.reasoning_parser"),
    "rollout.landing": Retired("recompute", "rollout.in_flight"),
    "run.eval_k": Retired(0, "k of pass@k is run.eval_samples; leave it out"),
    "cluster.unauthenticated": Retired(False, "leave it out, and set RAY_AUTH_MODE=disabled in the environment"),
    "cluster.spread_ranks": Retired(False, "several ranks on CPUs always have a node each; leave it out"),
}
"""Earlier field → what became of it."""
_USED_WITH = {
    "learn.normalize_std": ("advantage", ("group",)),
    "learn.is_cap": ("correction", ("tis", "mis", "seq_mis", "decoupled")),
    "learn.tv_bound": ("correction", ("dppo",)),
    "critic.whiten": ("advantage", ("gae",)),
}
"""Those that had an effect for some values of another field of ``learn`` alone."""


def retired_error(name: str, value: Any) -> ConfigError | None:
    """The error for the name of a field of earlier versions, with its place now; None for any other name."""
    retired = RETIRED.get(name)
    return ConfigError(name, value, f"is no field any more: {retired.way_out}") if retired else None


def carry_over(tree: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The configuration with the values of retired fields in their place now, and those values, by the field's name,
    that have none.
    """
    found = {name: dict(values) if isinstance(values, Mapping) else values for name, values in tree.items()}
    given = found.get("learn")
    learn = defaults(LearnConfig) | (given if isinstance(given, dict) else {})
    stray = {}
    for name, retired in RETIRED.items():
        section, field = name.split(".")
        if not isinstance(found.get(section), dict) or field not in found[section]:
            continue
        value = found[section].pop(field)
        other, used_with = _USED_WITH.get(name, ("", ()))
        unused = other and learn[other] not in used_with
        same = name != "learn.is_cap" or learn["correction"] != "decoupled"  # whose default is 5 now
        if unused or (same and to_json_types(value) == retired.default):
            continue
        if retired.moved:
            _put(found, retired.now, value)
        else:
            stray[name] = value
    return found, stray


def _put(tree: dict[str, Any], name: str, value: Any) -> None:
    """Write a value in its place, unless one stands there."""
    *sections, field = name.split(".")
    for section in sections:
        tree[section] = dict(tree.get(section) or {})
        tree = tree[section]
    tree.setdefault(field, value)


@dataclass(frozen=True, slots=True)
class Change:
    """A field with another value than before. ``allowed``: a resumed run may change it."""

    field: str
    was: Any
    now: Any
    allowed: bool

    def __str__(self) -> str:
        return f"{self.field} was {self.was!r}, is {self.now!r}"


def changes(was: Mapping[str, Any], now: Config) -> tuple[Change, ...]:
    """The fields of ``now`` that differ from ``was``, which :meth:`Config.to_dict` made, perhaps that of an earlier
    version: a field that it lacks had its default, and a retired one is ``None`` now.
    """
    before, stray = carry_over(was)
    found = [Change(name, value, None, False) for name, value in stray.items()]
    for section in fields(now):
        values, old = getattr(now, section.name), before.get(section.name)
        old = {**defaults(type(values)), **(old if isinstance(old, Mapping) else {})}
        for f in fields(values):
            was_value, value = to_json_types(old[f.name]), to_json_types(getattr(values, f.name))
            if was_value != value:
                allowed = bool(f.metadata.get(MAY_CHANGE, False))
                found.append(Change(f"{section.name}.{f.name}", was_value, value, allowed))
    return tuple(found)
