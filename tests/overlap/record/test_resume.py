"""A resumed run is the run that it was, or says what was changed."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from places import ROOT

from overlap.config.fields import Config
from overlap.config.load import load_config
from overlap.core import Prompt
from overlap.core.errors import ConfigError
from overlap.process.atomic import former_path, partial_path
from overlap.record.checkpoint import RunState, save_state, writing
from overlap.record.json_lines import read_json_lines
from overlap.record.resume import Resumed, check_reopen, data_digest, reopen, stored_config
from overlap.record.rundir import RunDir

PROMPTS = [Prompt(f"p{i}", (1, 2, i), data={"tests": [("1", "2")]}) for i in range(4)]
DATA = data_digest(PROMPTS)
TAMPERED = data_digest([replace(PROMPTS[0], data={"tests": [("1", "3")]}), *PROMPTS[1:]])


def fits(folder: Path) -> None:
    return None


def config(run: Path, *overrides: str) -> Config:
    return load_config(None, [f"run.dir={run}", *overrides])


def resumed(run: Path, *overrides: str, with_changes: bool = False) -> Resumed:
    opened, found = reopen(config(run, *overrides), DATA, fits=fits, with_changes=with_changes)
    opened.close()
    return found


def contents(run: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that was interrupted after step 3, with a checkpoint after step 2."""
    cfg = config(tmp_path / "run")
    made = RunDir.create(cfg.run.dir, cfg.to_dict())
    for step in (1, 2, 3):
        made.step({"step": step, "reward/mean": 0.1 * step, "time/overlap_efficiency": None})
        if step == 2:
            state = RunState(2, 2, 16, config=cfg.to_dict(), data=DATA, seconds=30.0, **made.offsets)
            with writing(made.checkpoints, 2) as folder:
                save_state(folder, state)
    made.close()
    return made.path


@pytest.mark.promise("resume")
def test_a_run_goes_on_after_its_newest_checkpoint_with_the_rows_until_there(run):
    opened, found = reopen(config(run), DATA, fits=fits)
    with pytest.raises(ConfigError, match="another run is writing there"):
        resumed(run)
    opened.step({"step": 3, "again": True})
    opened.close()
    assert (found.state.step, found.state.version, found.state.seconds) == (2, 2, 30.0)
    assert [row["step"] for row in found.rows] == [1, 2]
    assert math.isnan(found.rows[0]["time/overlap_efficiency"])
    assert read_json_lines(run / "metrics.jsonl")[2:] == [{"step": 3, "again": True}]


OTHER = "is not the same run: .*{}; resume it .*--resume-with-changes"
ALL = r"learn\.lr was 1e-06, is 0\.001; run\.seed was 0, is 5; the problems of data\.train was"


@pytest.mark.promise("resume")
@pytest.mark.parametrize(
    ("overrides", "data", "told"),
    [
        (["run.seed=1"], DATA, OTHER.format("run.seed was 0, is 1")),
        (["model.policy=other"], DATA, OTHER.format("model.policy was 'smollm2-135m-instruct', is 'other'")),
        (
            ["learn.kl_coef=0.1", "learn.reference=teacher"],
            DATA,
            OTHER.format(r"learn\.kl_coef was 0\.0, is 0\.1; learn\.reference was '', is 'teacher'"),
        ),
        (
            ["data.options.tests_per_problem=3"],
            DATA,
            OTHER.format("data.options was {}, is {'tests_per_problem': 3}"),
        ),
        (["run.seed=5", "learn.lr=1e-3", "run.steps=90"], TAMPERED, OTHER.format(ALL + ".*")),
        (["run.steps=2"], DATA, r"run\.steps=2: the run already took 2 steps; ask for more"),
    ],
)
def test_another_run_is_refused_with_what_differs_and_nothing_is_touched(run, overrides, data, told):
    before = contents(run)
    for ask in (reopen, check_reopen):
        with pytest.raises(ConfigError, match=told):
            ask(config(run, *overrides), data, fits=fits)
    assert contents(run) == before


def test_what_may_go_on_may_be_asked_for_and_nothing_is_touched(run):
    before = contents(run)
    check_reopen(config(run, "run.seed=1"), DATA, fits=fits, with_changes=True)
    for same in (
        *("run.steps=90", "run.save_every=7", "run.keep_last=9", "run.eval_samples=0"),
        *("data.train=moved.jsonl", "learn.ranks=2", "learn.zero_stage=3"),
    ):
        check_reopen(config(run, same), DATA, fits=fits)
    assert contents(run) == before
    resumed(run)  # no lock was left


@pytest.mark.promise("resume")
def test_changes_that_are_wanted_are_written_into_the_history(run):
    for _ in range(2):
        resumed(run, "learn.lr=1e-3", "run.steps=90", with_changes=True)
    stored = yaml.safe_load((run / "config.yaml").read_text())
    assert [entry["step"] for entry in stored["history"]] == [0, 2, 2]
    assert stored["history"][1]["changes"] == {
        "learn.lr": {"was": 1e-6, "is": 1e-3},
        "run.steps": {"was": 40, "is": 90},
    }
    assert load_config(run / "config.yaml").learn.lr == stored["learn"]["lr"] == 1e-3


def test_a_configuration_that_was_edited_by_hand_is_noticed(run):
    file = run / "config.yaml"
    file.write_text(file.read_text().replace("lr: 1.0e-06", "lr: 5.0e-05"))
    with pytest.raises(ConfigError, match=r"learn\.lr was 1e-06, is 5e-05"):
        reopen(load_config(stored_config(str(run)), [f"run.dir={run}"]), DATA, fits=fits)
    file.write_text("learn: [\n")
    with pytest.raises(ConfigError, match="is not YAML"):
        load_config(stored_config(str(run)))


def test_a_checkpoint_that_the_learner_cannot_load_is_refused_before_anything_is_cut_off(run):
    def refuse(folder: Path) -> None:
        raise ConfigError("checkpoint", str(folder), "was written with ranks=2; this run has 1")

    before = contents(run)
    with pytest.raises(ConfigError, match="ranks=2"):
        reopen(config(run), DATA, fits=refuse, with_changes=True)
    assert contents(run) == before
    RunDir.reopen(run).close()  # the lock is free again


def test_where_there_is_no_run_or_no_checkpoint_there_is_nothing_to_resume(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for template in ("nothing-there", "", "runs/{time}"):
        with pytest.raises(ConfigError, match=r"run\.dir="):
            stored_config(template)
    assert list(tmp_path.iterdir()) == []
    RunDir.create(str(tmp_path / "run"), Config().to_dict()).close()
    with pytest.raises(ConfigError, match=r"no complete checkpoint.*run\.save_every=N"):
        resumed(tmp_path / "run")


@pytest.mark.parametrize("name", ["policy", "policy-best"])
def test_a_policy_that_a_kill_left_between_two_names_is_found_again(run, name):
    former, partial = former_path(run / name), partial_path(run / name)
    for beside_the_new_one in (False, True):
        former.mkdir()
        partial.mkdir()
        if not beside_the_new_one:
            (former / "config.json").touch()
        resumed(run)
        assert (run / name / "config.json").is_file()
        assert not list(run.glob(".policy*"))


@dataclass(frozen=True)
class _Problem:
    tests: tuple[Any, ...]
    names: frozenset[str] = frozenset()


class _Opaque:
    """An object whose contents nobody knows; its repr holds an address."""


def test_a_digest_is_of_the_contents_and_the_same_in_every_process():
    code = (
        "from overlap.core import Prompt; from overlap.record.resume import data_digest;"
        "print(data_digest([Prompt('a', (1, 2), 'x', {'s': {'b', 'a', 'c'}, 'n': None, 'f': 0.5})]))"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, env={"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(told) == 1


def test_a_digest_sees_every_part_of_a_problem_and_not_where_an_object_lies():
    def of(data: Any, **fields: Any) -> str:
        return data_digest([replace(Prompt("a", (1, 2), "x", data), **fields)])

    base = _Problem((("1", b"2"), {"k": [1, 2.5]}), frozenset("ab"))
    others = [
        _Problem((("1", b"3"), {"k": [1, 2.5]}), frozenset("ab")),
        _Problem((("1", "2"), {"k": [1, 2.5]}), frozenset("ab")),
        _Problem((("1", b"2"), {"k": [1, 2]}), frozenset("ab")),
        _Problem((("1", b"2"), {"k": [1, 2.5]}), frozenset("abc")),
        None,
    ]
    digests = [of(base), *map(of, others), of(base, id="b"), of(base, token_ids=(1, 3)), of(base, prefill="y")]
    assert len(set(digests)) == len(digests)
    assert of(_Opaque()) == of(_Opaque())
    assert data_digest(PROMPTS) != data_digest(PROMPTS[::-1])
