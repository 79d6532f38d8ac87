"""Configuration: few fields, each documented; bad input is named with the way out."""

from __future__ import annotations

import json
import os
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest

from overlap.config.fields import Config
from overlap.config.load import changes, check_stored_fields, config_from_dict, load_config
from overlap.config.rollout import check_sharing
from overlap.config.rules import choices, field_infos, may_change
from overlap.core.errors import ConfigError

FIELDS = {
    f"{section.name}.{name}": info
    for section in fields(Config)
    for name, info in field_infos(type(getattr(Config(), section.name))).items()
}
SPECIAL = {
    "episode.jail": {"processes": 64},
    "episode.tokens": 512,
    "learn.clip_low": 0.1,
    "learn.clip_high": 0.3,
    "learn.dual_clip": 3.0,
    "learn.normalize_advantages": False,
    "run.callbacks": ("my_module:Mine",),
    "run.trackers": ("tensorboard", "wandb"),
}
"""Second values that the type of a field does not tell."""


def second(name: str) -> Any:
    """Another value of a field than its default."""
    default = FIELDS[name].get_default(call_default_factory=True)
    if options := choices(FIELDS[name].annotation):
        return next(choice for choice in options if choice != default)
    usual = {int: default + 1, float: default / 2 or 0.5} if isinstance(default, int | float) else {}
    return SPECIAL.get(name, (usual | {str: "other", tuple: ("x",), dict: {"a": 1}}).get(type(default)))


NEEDS = {
    "critic": ["learn.advantage=gae"],
    "learn.sequence_parallel": ["learn.ranks=2"],
    "learn.reference": ["learn.kl_coef=0.1"],
}


def test_there_are_at_most_75_fields() -> None:
    assert len(FIELDS) <= 75


@pytest.mark.promise("fields")
@pytest.mark.parametrize("name", FIELDS)
def test_a_field_takes_a_second_value_and_keeps_it_on_its_way_through_the_run_directory(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    section, _, field = name.partition(".")
    needs = NEEDS.get(name, NEEDS.get(section, []))
    cfg = load_config(None, [*needs, f"{name}={json.dumps(second(name))}"])
    assert getattr(getattr(cfg, section), field) == second(name)
    stored = json.loads(json.dumps(cfg.to_dict()))
    assert config_from_dict(stored) == cfg
    assert changes(stored, cfg) == ()
    told = [change.field for change in changes(load_config(None, needs).to_dict(), cfg)]
    assert told == [name]


@pytest.mark.promise("bad-input")
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("learn.lrr=1", "did you mean learn.lr"),
        ("learn.mask_truncated=false", r"is not a field; did you mean learn\.truncated\?"),
        ("learn=3", "section.field=value"),
        ("learn.lr=fast", "finite number"),
        ("learn.lr=.nan", "finite number"),
        ("learn.lr=0", "above 0"),
        ("run.steps=1.5", "whole number"),
        ("run.steps=true", "whole number"),
        ("learn.zero_stage=4", "one of 1, 2, 3"),
        ("learn.clip_low=1.5", "below 1"),
        ("rollout.gpu_memory=0", "above 0 and at most 1"),
        ("rollout.temperature=2.1", r"rollout\.temperature=2\.1: use a number above 0 and at most 2"),
        ("rollout.stop=['']", "non-empty strings"),
        ("run.trackers=wandb", r"use a list of non-empty strings, as in run.trackers=\[wandb\]"),
        ("rollout.samples_per_group=1", "2 or more samples"),
        ("data.drop_solved=0.9 learn.advantage=global rollout.samples_per_group=1", "one sample says too little"),
        ("verify.workers=4096", "core.* that this process may use"),
        ("learn.micro_batch_tokens=10", "one sequence has up to"),
        ("learn.updates_per_step=99", "whole groups"),
        ("learn.sequence_parallel=2", "divisor of learn.ranks=1"),
        ("learn.advantage=gae learn.ranks=2 learn.sequence_parallel=2", "reads whole sequences"),
        ("learn.advantage=leave_one_out learn.normalize_advantages=true", "RLOO divides by nothing: use null"),
        ("learn.truncated=bootstrap", r"use mask or zero, or learn\.advantage=gae"),
        ("learn.reference=teacher", r"learn\.reference='teacher': nothing is held .* use learn\.kl_coef above 0"),
        ("learn.advantage=none", r"nothing would be learned: use learn\.kl_coef above 0"),
        ("learn.advantage=none learn.kl_coef=1 learn.overlong_tokens=16", r"overlong_tokens=16: .* no reward: use 0"),
        ("learn.advantage=none learn.kl_coef=1 learn.normalize_advantages=true", "no reward: use null"),
        ("learn.correction=cispo", "use one of tis, mis, seq_mis, decoupled, dppo, none"),
        ("learn.loss=trpo", "use one of ppo, pg, cispo, gspo"),
        ("learn.correction=decoupled learn.loss=pg", r"use learn\.loss=ppo"),
        ("learn.correction=dppo", r"learn\.loss='ppo': .*use learn\.loss=pg"),
        ("learn.loss=gspo learn.clip_low=0.2", r"learn\.clip_low=0\.2: .* response: use null"),
        ("learn.correction=none learn.loss=pg learn.updates_per_step=2", "after the first"),
        ("critic.lr=1e-4", r"critic\.lr=0\.0001: there is a critic with learn\.advantage=gae alone"),
        ("learn.advantage=gae critic.lambda_policy=1.1", "0 or more and at most 1"),
        ("learn.advantage=gae critic.warmup_steps=5 run.steps=5", r"none of run\.steps=5: use less"),
        ("run.eval_every=5 run.eval_samples=0", r"run\.eval_samples=0: run\.eval_every needs 1 or more"),
    ],
)
def test_bad_values_and_impossible_combinations_are_refused_with_the_way_out(overrides: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(None, overrides.split())


@pytest.mark.parametrize(
    "overrides",
    [
        "learn.kl_coef=1 learn.reference=teacher learn.advantage=none rollout.samples_per_group=1",
        "learn.kl_coef=0.1 learn.kl_in=reward learn.advantage=gae",
        "rollout.max_staleness=4 learn.correction=seq_mis learn.loss=pg learn.updates_per_step=2",
        "rollout.max_staleness=4 learn.correction=dppo learn.loss=pg",
        "learn.correction=none learn.updates_per_step=2",
        "learn.loss=cispo learn.clip_high=0.28 learn.updates_per_step=4",
        "learn.loss=gspo learn.correction=seq_mis learn.updates_per_step=4",
        "learn.advantage=gae rollout.samples_per_group=1 learn.truncated=bootstrap",
        "learn.advantage=gae learn.normalize_advantages=true critic.lambda_policy=0.95",
        "learn.advantage=global rollout.samples_per_group=1 learn.truncated=zero",
    ],
)
def test_every_correction_and_every_advantage_has_a_configuration(overrides: str) -> None:
    load_config(None, overrides.split())


def test_a_file_says_what_differs_from_the_one_that_it_extends(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "a.yaml").write_text("run:\n  steps: 7\n  seed: 3\ndata:\n  options: {packages: [numpy]}\n")
    (tmp_path / "b.yaml").write_text("extends: a.yaml\nrun:\n  steps: 8\n")
    (tmp_path / "deep" / "c.yaml").write_text("extends: ../b.yaml\ndata:\n  options: {preamble: none}\n")
    cfg = load_config(tmp_path / "deep" / "c.yaml", ["data.options.tests_per_problem=2"])
    assert (cfg.run.steps, cfg.run.seed) == (8, 3)
    assert cfg.data.options == {"packages": ["numpy"], "preamble": "none", "tests_per_problem": 2}


@pytest.mark.parametrize(
    ("base", "message"),
    [
        ("b.yaml", r"extends='.*a\.yaml': is extended by itself"),
        ("no.yaml", r"extends='.*no\.yaml': cannot be read"),
        ("3", r"extends=3: give the path of one YAML file"),
    ],
)
def test_a_file_that_cannot_be_extended_is_one_clear_error(tmp_path: Path, base: str, message: str) -> None:
    (tmp_path / "a.yaml").write_text(f"extends: {base}\n")
    (tmp_path / "b.yaml").write_text("extends: a.yaml\n")
    with pytest.raises(ConfigError, match=message):
        load_config(tmp_path / "a.yaml")


def test_leases_and_batch_size_are_derived() -> None:
    cfg = load_config(None, ["rollout.max_staleness=2", "rollout.groups_per_step=4", "rollout.samples_per_group=8"])
    assert (cfg.leases, cfg.samples_per_step) == (12, 32)
    assert cfg.parity_bound == 0.05


@pytest.mark.promise("fields")
def test_the_config_that_a_run_leaves_is_one_to_start_with(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("run:\n  steps: 7\nhistory:\n- {step: 0, at: yesterday}\n")
    assert load_config(file).run.steps == 7


def test_what_differs_is_told_with_what_it_was() -> None:
    was = json.loads(json.dumps(load_config(None, ["rollout.stop=['```']"]).to_dict()))
    assert changes(was, load_config(None, ["rollout.stop=['```']"])) == ()
    found = changes(was, load_config(None, ["learn.lr=2e-5", "run.steps=9", "rollout.stop=['```']"]))
    assert [(str(c), c.allowed) for c in found] == [
        ("learn.lr was 1e-06, is 2e-05", False),
        ("run.steps was 40, is 9", True),
    ]


def test_a_field_may_not_change_unless_it_says_so() -> None:
    """Seed, data, group sizes, model and loss make a run what it is; how long it takes and where it lies do not."""
    free = {name for name, info in FIELDS.items() if may_change(info)}
    assert {"run.steps", "run.save_every", "run.keep_last", "run.eval_samples", "run.dir"} <= free
    fixed = {"run.seed", "rollout.groups_per_step", "rollout.samples_per_group", "model.policy", "learn.lr"}
    fixed |= {"data.options", "data.task", "rollout.temperature", "learn.clip_high", "learn.truncated"}
    fixed |= {"rollout.engine"}
    fixed |= {"learn.advantage", "critic.policy", "critic.lr", "critic.warmup_steps"}
    fixed |= {"data.drop_solved", "learn.overlong_tokens", "learn.loss"}
    fixed |= {"learn.reference", "learn.kl_coef", "learn.kl_in"}
    assert not fixed & free


def test_an_engine_has_a_place_for_an_adapter_of_any_rank_that_is_taken() -> None:
    known = get_args(pytest.importorskip("vllm.config.lora").MaxLoRARanks)
    for rank in (1, 4, 300, 512):
        place = load_config({"learn.lora_rank": rank}).learn.engine_rank
        assert place in known
        assert place >= rank
    with pytest.raises(ConfigError, match=r"learn\.lora_rank=513: use 0 or more and at most 512"):
        load_config({"learn.lora_rank": 513})


def test_the_configuration_of_another_versions_run_is_refused_in_one_line() -> None:
    check_stored_fields(Config().to_dict(), "runs/a")
    was = Config().to_dict()
    was["learn"]["former"] = 3
    with pytest.raises(
        ConfigError, match=r"^run\.dir='runs/a': another version made this run \(it has learn\.former\)"
    ):
        check_stored_fields(was, "runs/a")
    del was["learn"]["lora_rank"]
    with pytest.raises(ConfigError, match=r"and differs in 1 other field\): use that version for it"):
        check_stored_fields(was, "runs/a")


def test_an_engine_that_sleeps_while_the_learner_learns_keeps_responses_and_not_what_it_made_of_them() -> None:
    kept = load_config(None, ["rollout.max_staleness=1", "rollout.in_flight=keep"]).rollout
    with pytest.raises(ConfigError, match=r"rollout\.in_flight='keep': the engine sleeps .* use recompute or drain"):
        check_sharing("ipc", kept)
    check_sharing("nccl", kept)
    for other in (["rollout.in_flight=keep"], ["rollout.max_staleness=1", "rollout.in_flight=drain"]):
        check_sharing("ipc", load_config(None, other).rollout)
