"""What an earlier commit has left in a run directory is read by this one."""

from __future__ import annotations

from pathlib import Path

import former_run
import pytest
import yaml

from overlap import cli


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return former_run.unpack(tmp_path)


def test_a_former_run_can_be_resumed_by_its_own_configuration(run: Path, capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["train", "--resume", "run.dir=run", "run.steps=4", "--dry-run"]) == 0
    assert "resume" not in capsys.readouterr().err


def test_a_former_run_with_another_seed_is_not_resumed(run: Path, capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["train", "--resume", "run.dir=run", "run.steps=4", "run.seed=7", "--dry-run"]) == 2
    assert "run.seed" in capsys.readouterr().err


def test_the_samples_of_a_former_run_can_be_learned_from(run: Path, capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["train", "--from-rollouts", "run", "run.dir=again", "--dry-run"]) == 0, capsys.readouterr().err


def test_the_schedule_of_a_former_run_is_simulated(run: Path, capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["replay", "run"]) == 0
    assert "2 steps" in capsys.readouterr().out


def test_a_former_configuration_says_the_same_as_ever(run: Path) -> None:
    """Where fields moved since, the run's own file is read into their new places."""
    from overlap.config.load import load_config
    from overlap.record.resume import stored_config

    stored = yaml.safe_load((run / "config.yaml").read_text())
    cfg = load_config(stored_config("run"), [])
    assert (cfg.run.steps, cfg.learn.lr) == (stored["run"]["steps"], stored["learn"]["lr"])


def test_the_results_that_no_step_had_taken_are_read_from_a_former_checkpoint(run: Path) -> None:
    from overlap.record.carryover import Carryover
    from overlap.record.checkpoint import find_checkpoint, load_state

    checkpoint = find_checkpoint(run / "checkpoints", 1)
    assert len(Carryover.load(checkpoint)) == load_state(checkpoint).carried == 8


def test_the_checkpoint_of_a_former_run_is_exported(run: Path) -> None:
    from safetensors import safe_open

    assert cli.main(["export", "run", "--out", "exported"]) == 0
    with safe_open("exported/model.safetensors", "np") as made, safe_open("run/policy/model.safetensors", "np") as kept:
        assert set(made.keys()) == set(kept.keys())
        assert all((made.get_tensor(name) == kept.get_tensor(name)).all() for name in made.keys())  # noqa: SIM118
