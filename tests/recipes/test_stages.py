"""Training in stages: each from the policy of the one before, and the same command goes on where it was."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from places import ROOT
from rows import OWN, jsonl, refusal
from shapes import R1_DISTILL_14B
from tiny_policy import make_tiny_policy

from overlap.config.fields import Config
from overlap.record.checkpoint import RunState, save_state, writing
from overlap.record.run_summary import RunExit
from overlap.record.rundir import RunDir
from recipes.code_rl import stages
from recipes.code_rl.stages import Stage, stages_of

CONFIGS = ROOT / "recipes" / "code_rl" / "configs"
FILES = [CONFIGS / "deepcoder_14b_16k.yaml", CONFIGS / "deepcoder_14b_32k.yaml"]


class Trainer:
    """Stands for ``overlap.train``: trains until ``stops`` (0-based number of its call) ends it in the given way."""

    def __init__(self, **stops: str) -> None:
        self.calls: list[tuple[str, str, bool]] = []
        self.stops = {int(call.removeprefix("call")): how for call, how in stops.items()}

    def __call__(self, cfg: Config, *, resume: bool) -> dict[str, Any]:
        how = self.stops.get(len(self.calls), "finished")
        folder = Path(cfg.run.dir)
        self.calls.append((folder.name, cfg.model.policy, resume))
        if resume:
            assert (folder / "checkpoints").is_dir()
        else:
            RunDir.create(cfg.run.dir, cfg.to_dict()).close()
        (folder / "metrics.jsonl").write_text("{}\n")
        if how != "early":
            self.checkpoint(folder, cfg, cfg.run.steps if how in ("finished", "late") else 1)
        if how in ("finished", RunExit.ALL_SOLVED):
            (folder / "policy").mkdir()
            (folder / "policy" / "config.json").write_text("{}")
        steps = 1 if how == RunExit.ALL_SOLVED else cfg.run.steps
        (folder / "summary.json").write_text(json.dumps({"exit": how, "steps": steps}))
        if how in ("early", "killed", "late"):
            raise KeyboardInterrupt(2)
        return {"exit": how}

    def checkpoint(self, folder: Path, cfg: Config, step: int) -> None:
        (folder / "checkpoints").mkdir(exist_ok=True)
        with writing(folder / "checkpoints", step, keep=2) as path:
            save_state(path, RunState(step=step, version=step, config=cfg.to_dict()))


class Command:
    """The command for two small stages, whose directories lie in one folder."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.runs, self.files, self.said = folder / "runs", list[str](), ""
        for name in ("first", "second"):
            (path := folder / f"{name}.yaml").write_text(f"run:\n  steps: 3\n  dir: {self.runs}/{name}\n")
            self.files.append(str(path))
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *words: str, code: int = 0, **stops: str) -> list[tuple[str, str, bool]]:
        """Run it with a Trainer; returns what that was asked for."""
        self._monkeypatch.setattr(stages, "run_training", trainer := Trainer(**stops))
        assert stages.main([*self.files, *words]) == code
        self.said = "".join(self._capsys.readouterr())
        return trainer.calls


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(tmp_path, monkeypatch, capsys)


def test_a_stage_begins_with_the_policy_of_the_one_before(command: Command) -> None:
    calls = command("model.policy=start")
    assert calls == [("first", "start", False), ("second", f"{command.runs}/first/policy", False)]
    assert command("model.policy=start") == []


@pytest.mark.promise("recipe")
@pytest.mark.parametrize(("stop", "then"), [(0, [("first", True), ("second", False)]), (1, [("second", True)])])
def test_a_command_that_was_stopped_goes_on_in_the_stage_where_it_was(
    stop: int, then: list[tuple[str, bool]], command: Command
) -> None:
    command(code=130, **{f"call{stop}": "killed"})
    assert [(name, resume) for name, _, resume in command()] == then


def test_a_stage_that_was_stopped_before_its_first_checkpoint_begins_anew_beside_what_it_left(command: Command) -> None:
    for _ in range(2):
        command(code=130, call0="early")
    assert [resume for _, _, resume in command()] == [False, False]
    left = sorted(path.name for path in command.runs.iterdir())
    assert left == ["first", "first.stopped-1", "first.stopped-2", "second"]
    assert "stopped before its first checkpoint" in command.said


def test_a_stage_that_another_command_trains_is_left_alone(command: Command) -> None:
    command(code=130, call0="early")
    other = RunDir.reopen(command.runs / "first")
    command(code=2)
    other.close()
    assert "another run is writing there" in command.said
    assert [path.name for path in command.runs.iterdir()] == ["first"]


def test_the_policy_of_a_stage_that_was_stopped_behind_its_last_step_is_that_of_its_checkpoint(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    command(code=130, call0="late")
    exported = list[str]()
    monkeypatch.setattr(stages, "export", exported.append)
    assert command() == [("second", f"{command.runs}/first/policy-step-000003", False)]
    assert exported == [f"{command.runs}/first"]


def test_a_stage_whose_prompts_are_all_solved_has_ended(command: Command) -> None:
    assert [name for name, _, _ in command(call0=RunExit.ALL_SOLVED)] == ["first", "second"]
    assert command() == []


def test_a_finished_stage_that_has_lost_its_policy_is_not_trained_again(command: Command) -> None:
    command()
    shutil.rmtree(command.runs / "first" / "policy")
    shutil.rmtree(command.runs / "first" / "checkpoints")
    for words in ([], ["--dry-run"]):
        assert command(*words, code=2) == []
        assert "holds a finished stage without its policy/" in command.said


@pytest.mark.parametrize("gone", [True, False])
def test_a_stage_that_began_with_a_policy_of_another_training_is_refused_before_anything_is_trained(
    gone: bool, command: Command
) -> None:
    command()
    if gone:
        shutil.rmtree(command.runs / "first")
    assert command(*([] if gone else ["run.steps=5"]), code=2) == []
    assert "runs/first is going to leave: give it another name" in command.said


def test_a_run_that_was_asked_to_stop_begins_no_further_stage(command: Command) -> None:
    assert [name for name, _, _ in command(call0="drained")] == ["first"]
    assert "drained; the same command goes on from here" in command.said


def test_more_steps_of_a_stage_that_was_finished_are_trained(command: Command) -> None:
    del command.files[1]
    command()
    assert [resume for _, _, resume in command("run.steps=5", call0="late", code=130)] == [True]


def test_a_run_directory_that_is_given_is_the_folder_of_all_stages(tmp_path: Path, command: Command) -> None:
    found = stages_of([Path(file) for file in command.files], [f"run.dir={tmp_path}/here", "learn.lr=2e-6"])
    assert [stage.cfg.run.dir for stage in found] == [f"{tmp_path}/here/first", f"{tmp_path}/here/second"]
    assert found[1].cfg.model.policy == f"{tmp_path}/here/first/policy"
    assert {stage.cfg.learn.lr for stage in found} == {2e-6}


def test_data_is_prepared_once_and_every_stage_trains_on_it(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, trained = list[tuple[str, ...]](), list[str]()

    def run(self: Any) -> None:
        made.append(self.sources)
        self.out.write_text('{"id": "a", "split": "train", "source": "x"}\n')

    def train(cfg: Config, *, resume: bool) -> dict[str, Any]:
        trained.append(cfg.data.train)
        return {"exit": "finished"}

    monkeypatch.setattr(stages.Preparation, "run", run)
    monkeypatch.setattr(stages, "run_training", train)
    data = tmp_path / "new" / "data.jsonl"
    first = Path(command.files[0])
    first.write_text(first.read_text() + "data:\n  train: own/set:a+b\n")
    for _ in range(2):
        assert stages.main([*command.files, "--prepare", str(data)]) == 0
    assert made == [("own/set:a+b",)]
    assert set(trained) == {str(data)}
    assert stages.main([*command.files, "--prepare", str(tmp_path / "other.jsonl"), "data.train=mine.jsonl"]) == 0
    assert trained[-1] == "mine.jsonl"


@pytest.mark.promise("recipe")
def test_the_published_recipe_is_two_stages_at_16k_and_32k() -> None:
    first, second = stages_of(FILES, ["verify.workers=1"])
    assert (first.cfg.model.response_tokens, second.cfg.model.response_tokens) == (16384, 32768)
    assert second.cfg.model.policy == str(first.policy)
    for stage in (first, second):
        r, le = stage.cfg.rollout, stage.cfg.learn
        assert (r.groups_per_step, r.samples_per_group, r.temperature) == (128, 8, 0.6)
        assert (le.lr, le.clip_low, le.clip_high, le.kl_coef, le.entropy_coef) == (1e-6, 0.2, 0.28, 0.0, 0.0)
        assert (le.updates_per_step, le.grad_clip, le.weight_decay) == (2, 1.0, 0.01)
        assert (stage.cfg.data.options, stage.cfg.run.save_every) == ({}, 10)
        assert stage.state() == "new"
    assert isinstance(first, Stage)
    assert first.cfg.run.steps == 180


@pytest.mark.parametrize("names", [["deepcoder_14b_16k", "deepcoder_14b_32k"], ["deepcoder_1.5b_1gpu"]])
def test_a_dry_run_plans_every_stage_and_makes_nothing(
    names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("overlap.placement.fit.free_memory", lambda: 10**12)
    policy = make_tiny_policy(tmp_path / "tiny")
    shape = json.loads((policy / "config.json").read_text()) | {"max_position_embeddings": 65536}
    (policy / "config.json").write_text(json.dumps(shape))
    data = [
        f"data.{split}={jsonl(tmp_path / f'{split}.jsonl', {**OWN, 'statement': split})}"
        for split in ("train", "heldout")
    ]
    here = ["verify.workers=1", "run.device=auto", f"model.policy={policy}", *data]
    files = [str(CONFIGS / f"{name}.yaml") for name in names]
    assert stages.main([*files, *here, "--dry-run", "--all"]) == 0
    assert capsys.readouterr().out.count("\n  groups_per_step: ") == len(names)
    assert stages.main([*files, *here, "--prepare", "runs/data.jsonl", "--dry-run"]) == 0
    said = capsys.readouterr().out
    for number, name in enumerate(names, start=1):
        assert f"# stage {number} of {len(names)}, {name}: new; it begins with" in said
    assert said.count("1 to train on, 1 held out") == len(names)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["heldout.jsonl", "tiny", "train.jsonl"]


def test_the_stages_of_deepcoder_are_planned_for_hardware_that_is_not_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(R1_DISTILL_14B))
    monkeypatch.chdir(tmp_path)
    files = [*map(str, FILES), f"model.policy={tmp_path}", "--dry-run", "--devices"]
    assert stages.main([*files, "8x80"]) == 0
    said = capsys.readouterr().out
    assert said.count("# stage ") == said.count("GPU 0-7 ") == 2
    assert stages.main([*files, "8x40"]) == 2
    assert "the run does not fit" in capsys.readouterr().err
    assert stages.main([*map(str, FILES), "verify.workers=1", "--devices", "8x80"]) == 2
    assert "use it with --dry-run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["/no/such.yaml"], "cannot be read"),
        ([str(FILES[0]), "--resume"], "there is no --resume"),
        ([str(FILES[0]), "--all"], "it lists every field: use it with --dry-run"),
        ([str(FILES[0]), "--all", "--dry-run", "--devices", "8x80"], "and without --devices"),
        ([str(FILES[0]), "verify.workers=1", "learn.lrr=1"], "did you mean learn.lr?"),
        ([str(FILES[0]), str(FILES[0]), "verify.workers=1"], "two stages would write there"),
        ([str(FILES[1]), str(FILES[0]), "verify.workers=1", "model.policy=x"], "put that right before it"),
        ([], "STAGE.yaml"),
    ],
)
def test_wrong_words_are_one_line_and_exit_code_2(words: list[str], says: str) -> None:
    assert says in refusal(stages.main, words)
