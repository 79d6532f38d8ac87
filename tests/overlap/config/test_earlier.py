"""Fields of earlier versions: a run that has them goes on, and who writes one is told its place now."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from overlap import cli
from overlap.config.docs import field_lines
from overlap.config.earlier import RETIRED, changes
from overlap.config.fields import Config
from overlap.config.load import config_from_dict, load_config
from overlap.errors import ConfigError

SECOND: dict[str, tuple[Any, list[str], str]] = {
    # earlier field: a second value, what it needs, what it is now ("": refused)
    "learn.share_prompts": ("never", [], ""),
    "learn.normalize_std": (False, [], "learn.normalize_advantages=false"),
    "learn.is_cap": (3.0, [], "learn.correction_bound=3.0"),
    "learn.tv_bound": (0.1, ["learn.correction=dppo", "learn.loss=pg"], "learn.correction_bound=0.1"),
    "learn.surrogate": ("cispo", [], "learn.loss=cispo"),
    "learn.sequence_ranks": (2, ["learn.ranks=2"], "learn.sequence_parallel=2"),
    "critic.whiten": (True, ["learn.advantage=gae"], "learn.normalize_advantages=true"),
    "critic.clip": (0.2, ["learn.advantage=gae"], ""),
    "critic.lambda_value": (0.9, ["learn.advantage=gae"], ""),
    "critic.steps_alone": (3, ["learn.advantage=gae"], "critic.warmup_steps=3"),
    "verify.max_failure_share": (0.5, [], ""),
    "data.tests_per_problem": (3, [], "data.options.tests_per_problem=3"),
    "data.preamble": ("none", [], "data.options.preamble=none"),
    "data.packages": (["numpy"], [], "data.options.packages=[numpy]"),
    "model.episode_tokens": (512, [], "episode.tokens=512"),
    "rollout.command": ("run me", [], "episode.command=run me"),
    "rollout.turns": (3, [], "episode.turns=3"),
    "rollout.episode_s": (60.0, [], "episode.timeout_s=60.0"),
    "rollout.tool_parser": ("hermes", [], "episode.tool_parser=hermes"),
    "rollout.reasoning_parser": ("qwen3", [], "episode.reasoning_parser=qwen3"),
    "rollout.landing": ("keep", [], "rollout.in_flight=keep"),
    "run.eval_k": (2, [], ""),
    "cluster.unauthenticated": (True, [], ""),
    "cluster.spread_ranks": (True, [], ""),
}


def stored(cfg: Config, **earlier: Any) -> dict[str, Any]:
    """What an earlier version wrote of ``cfg``."""
    tree = cfg.to_dict()
    for name, value in earlier.items():
        section, _, field = name.partition(".")
        tree[section][field] = value
    return tree


def test_each_retired_field_has_a_second_value_here() -> None:
    assert list(SECOND) == list(RETIRED)


def test_a_run_with_all_retired_fields_at_their_defaults_is_the_default_run(tmp_path: Path) -> None:
    was = stored(Config(), **{name: retired.default for name, retired in RETIRED.items()})
    assert config_from_dict(was) == Config()
    assert changes(was, Config()) == ()
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(stored(Config(), **{name: old.default for name, old in RETIRED.items()}) | {
        "rollout": {"stop": [], "landing": "recompute"}}))  # fmt: skip
    assert load_config(file) == Config()


@pytest.mark.parametrize("name", SECOND)
def test_another_value_is_carried_to_its_place_now_or_refused_with_the_way_out(name: str) -> None:
    value, needs, now = SECOND[name]
    base = load_config(None, needs)
    was = stored(base, **{name: value})
    for unset in ("normalize_advantages", "correction_bound", "sequence_parallel"):
        del was["learn"][unset]
    for section, field in ((n.split(".")[0], n.split(".")[1]) for n in [now.partition("=")[0]] if now):
        was[section].pop(field, None)
    if now:
        assert config_from_dict(was) == load_config(None, [*needs, now])
        assert changes(was, load_config(None, [*needs, now])) == ()
        (change,) = changes(was, base)
        assert now.startswith(change.field)
    else:
        with pytest.raises(ConfigError, match=f"^{name}=.*: is no field any more: .*leave it out"):
            config_from_dict(was)
        assert [(c.field, c.was, c.allowed) for c in changes(was, base)] == [(name, value, False)]


@pytest.mark.parametrize("name", SECOND)
def test_on_the_command_line_an_earlier_name_is_answered_with_its_place_now(
    name: str, capsys: pytest.CaptureFixture
) -> None:
    now = SECOND[name][2].partition("=")[0]
    assert cli.main(["train", f"{name}=1"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{name}=1: is no field any more: " + (f"use {now}" if now else "") in line
    with pytest.raises(ConfigError, match=f"use {now}" if now else "leave it out"):
        field_lines(name)


def test_a_cap_that_was_the_default_stays_where_another_is_published_now() -> None:
    was = stored(load_config(None, ["learn.correction=decoupled"]), **{"learn.is_cap": 2.0})
    del was["learn"]["correction_bound"]
    assert config_from_dict(was).learn.correction_bound == 2.0


def test_a_value_that_its_run_did_not_use_is_dropped() -> None:
    unused = {"learn.is_cap": 0, "learn.tv_bound": 0.1, "learn.normalize_std": False}
    base = load_config(None, ["learn.correction=none", "learn.advantage=global"])
    assert config_from_dict(stored(base, **unused)) == base
    assert changes(stored(base, **unused), base) == ()
