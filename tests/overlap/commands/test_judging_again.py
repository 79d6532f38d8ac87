"""Samples that a run has kept are judged once more: what changed is told, and a learner can learn from it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from made_run import RunMaker, RunShape, program_of
from rows import refusal
from sessions import Generator, Stage, Tokenizer, Verifier

import overlap
from overlap import Task, cli
from overlap.config.fields import Config
from overlap.core import Prompt, Scored, Trajectory
from overlap.errors import ConfigError
from overlap.fakes import fake_prompts
from overlap.prepare.run_inputs import RunInputs
from overlap.record.json_lines import read_json_lines
from overlap.record.rollouts import Rollouts

KEPT = ("run.keep_rollouts=true", "run.steps=4", "run.samples=all", "run.trackers=[]")


class Judge(Verifier):
    """``ruling`` says what an answer is worth: a reward, or the failure of ours that masks it."""

    def __init__(self, ruling: Any) -> None:
        super().__init__()
        self.ruling = ruling
        self.seen: list[Trajectory] = []

    async def score(self, trajectory: Trajectory) -> Scored:
        self.seen.append(trajectory)
        found = self.ruling(trajectory)
        if isinstance(found, str):
            return Scored(trajectory, None, None, found, 0.0, 0.0, 0.0)
        return Scored(trajectory, found, None, "", 0.0, 0.0, 0.0)


class NoEngine(Generator):
    """An engine that nobody may start."""

    async def start(self) -> None:
        raise AssertionError("an engine was started")


class Lab:
    """A run on the fakes that has kept its samples, and what judges them again."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.patch = folder, patch
        self.asked: list[Config] = []
        self.prompts: list[Prompt] = fake_prompts(8)
        self.run = folder / "run"
        self.stage = Stage(folder, patch, *KEPT)
        (self.stage.policy / "config.json").write_text("{}")
        for module in ("overlap.run.training", "overlap.commands.train", "overlap.commands.standalone"):
            patch.setattr(f"{module}.prepare", self._prepare)

    def _prepare(self, cfg: Config, task: Any, scratch: Path, output: Any = None) -> RunInputs:
        self.asked.append(cfg)
        asked: Any = task or SimpleNamespace(program=lambda prompt, answer: None, packages=())
        return RunInputs(cfg, asked, self.stage.policy, Tokenizer(), tuple(self.prompts), ())

    def keep(self, generator: Generator | None = None) -> list[dict[str, Any]]:
        """Train; returns the lines of the samples."""
        self.stage.generator = generator or Generator(seed=3)
        self.stage.verifier = Verifier(seed=3, solved=0.3, failed=0.02)
        overlap.train(self.stage.cfg)
        return read_json_lines(self.run / "rollouts.jsonl")[1:]

    def judge(self, ruling: Any) -> Judge:
        """From here on this is the verifier, and there is no engine."""
        made = Judge(ruling)
        self.patch.setattr("overlap.verify.verifier.SandboxVerifier", lambda *a, **k: made)
        self.patch.setattr("overlap.generate.client.EngineClient", lambda *a, **k: NoEngine())
        return made


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    return Lab(tmp_path, monkeypatch)


def before(rows: list[dict[str, Any]]) -> Any:
    """A ruling that comes to what was found before."""
    known = {(row["group"], row["sample"]): row for row in rows}
    return lambda t: known[t.request.place]["failure"] or known[t.request.place]["reward"]


@pytest.mark.promise("judge-again")
def test_the_same_judge_changes_nothing(lab: Lab) -> None:
    rows = lab.keep()
    lab.judge(before(rows))
    found = overlap.judge_again(lab.run, out=lab.folder / "again")
    assert len(found.samples) == len(rows) > 0
    assert [s.before.reward for s in found.samples] == [s.after.reward for s in found.samples]
    again = read_json_lines(lab.folder / "again" / "rollouts.jsonl")
    assert again[0] == read_json_lines(lab.run / "rollouts.jsonl")[0]
    same = ("step", "group", "sample", "prompt", "token_ids", "logprobs", "text", "finish", "spans", "reward")
    assert [[row[name] for name in same] for row in again[1:]] == [[row[name] for name in same] for row in rows]


@pytest.mark.promise("judge-again")
def test_what_changed_is_told_by_figure_verdict_problem_and_sample(lab: Lab, capsys: Any) -> None:
    rows = lab.keep()
    kept = before(rows)
    first = rows[0]["prompt"]
    other = next(row["prompt"] for row in rows if row["reward"] and row["prompt"] != first)

    def ruling(trajectory: Trajectory) -> Any:
        if trajectory.request.place == (0, 0):
            return "the worker was killed"
        return 0.0 if trajectory.request.prompt.id == other else kept(trajectory)

    lab.judge(ruling)
    assert cli.main(["judge-again", str(lab.run), "--limit", "2"]) == 0
    told = capsys.readouterr().out
    lost = [row for row in rows if row["prompt"] == other and row["reward"]]
    assert f"{len(rows)} samples of {lab.run}/rollouts.jsonl judged again" in told
    assert "before, then after" in told
    assert re.search(rf"^  {other} +[01]\.\d+ -> 0\.000   {len(lost)} of \d+$", told, re.MULTILINE)
    assert "(the first 2)" in told or len(lost) < 2
    assert cli.main(["judge-again", str(lab.run), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    moved = {s["id"] for s in found["changed"] if s["problem"] == other}
    assert {f"g{r['group']}s{r['sample']}" for r in lost} == moved
    masked = next(s for s in found["changed"] if s["id"] == "g0s0")
    assert (masked["after"]["reward"], masked["after"]["failure"]) == (None, "the worker was killed")
    assert found["figures"]["mean reward"]["after"] < found["figures"]["mean reward"]["before"]
    assert sum(pair["samples"] for pair in found["verdicts"]) == len(rows)


def test_a_learner_learns_from_the_new_rewards(lab: Lab) -> None:
    lab.keep()
    lab.judge(lambda t: float(t.request.sample == 0))
    found = overlap.judge_again(lab.run, out=lab.folder / "again")
    assert found.note == "4 steps for overlap train --from-rollouts"
    assert cli.main(["train", "--from-rollouts", str(lab.folder / "again"), f"run.dir={lab.folder / 'b'}"]) == 0
    batches = lab.stage.learner.batches[-4:]
    rewards = [[s.reward for s in group.samples] for batch in batches for group in batch.groups]
    assert rewards == [[1.0, 0.0, 0.0, 0.0]] * len(rewards) != []


def test_fields_and_the_task_are_set_as_elsewhere(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.keep()
    lab.judge(lambda t: 1.0)
    asked: list[Config] = []
    real = lab._prepare

    def noting(cfg: Config, *args: Any) -> RunInputs:
        asked.append(cfg)
        return real(cfg, *args)

    monkeypatch.setattr("overlap.commands.standalone.prepare", noting)
    assert cli.main(["judge-again", str(lab.run), "--task", "mine:Other", "verify.cpu_s=9"]) == 0
    assert (asked[0].data.task, asked[0].verify.cpu_s) == ("mine:Other", 9.0)
    assert "no_such.field" in refusal(cli.main, ["judge-again", str(lab.run), "no_such.field=1"])


def test_no_run_takes_the_folder_of_judged_samples_for_a_failed_start_and_clears_it(lab: Lab) -> None:
    lab.judge(before(lab.keep()))
    overlap.judge_again(lab.run, out=lab.folder / "again")
    with pytest.raises(ConfigError, match="holds files that are no run's"):
        overlap.train(lab.stage.cfg.replace({"run.dir": str(lab.folder / "again")}))


def test_answers_to_other_prompts_are_left_out_and_counted(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = lab.keep()
    lab.judge(lambda t: 1.0)
    old = lab.prompts
    lab.prompts = [replace(old[0], token_ids=(9, 9)), *old[1:7]]  # p0 asks something else, p7 is gone
    splits = {"train": SimpleNamespace(prompts=old), "heldout": SimpleNamespace(prompts=[])}
    monkeypatch.setattr("overlap.commands.judging_again.task_prompts", lambda *a: splits)
    monkeypatch.setattr("overlap.task.load_task", lambda *a: None)
    found = overlap.judge_again(lab.run, out=lab.folder / "again")
    count = {name: sum(row["prompt"] == name for row in rows) for name in ("p0", "p7")}
    assert found.left_out == {
        "the prompt of this name asks something else now": count["p0"],
        "the data has no such problem": count["p7"],
    }
    assert found.note.startswith(("train --from-rollouts will not take it", "it has the samples of no whole step"))


def test_data_that_has_none_of_the_problems_is_refused_and_leaves_no_folder(lab: Lab) -> None:
    rows = lab.keep()
    lab.judge(lambda t: 1.0)
    lab.prompts = [replace(prompt, id=f"other-{prompt.id}") for prompt in lab.prompts]
    said = rf"can be judged again by it \({len(rows)} samples: the data has no such problem\); name the data"
    with pytest.raises(ConfigError, match=said):
        overlap.judge_again(lab.run, out=lab.folder / "again")
    assert not list(lab.folder.glob("*again*"))


def test_samples_that_are_kept_for_people_can_be_judged_and_not_learned_from(lab: Lab) -> None:
    rows = lab.keep()
    (lab.run / "rollouts.jsonl").unlink()
    judge = lab.judge(lambda t: 1.0)
    found = overlap.judge_again(lab.run)
    assert len(found.samples) == len(rows)
    assert {t.text for t in judge.seen} == {row["text"] for row in rows}
    assert found.source.name == "trajectories.jsonl"
    with pytest.raises(ConfigError, match=r"has no rollouts.jsonl to learn from \(run.keep_rollouts\)"):
        overlap.judge_again(lab.run, out=lab.folder / "again")


def test_an_episode_without_an_answer_is_told_and_stays_as_it_was(lab: Lab) -> None:
    class Fails(Generator):
        async def generate(self, request: Any) -> Trajectory:
            made = await super().generate(request)
            return replace(made, failure="the agent has crashed") if request.place == (1, 2) else made

    rows = lab.keep(Fails(seed=3))
    judge = lab.judge(lambda t: 1.0)
    found = overlap.judge_again(lab.run, out=lab.folder / "again")
    assert found.left_out.total() == 1
    assert len(judge.seen) == len(rows) - 1
    loaded = Rollouts.load(lab.folder / "again" / "rollouts.jsonl")
    before = next(row["reward"] for row in rows if (row["group"], row["sample"]) == (1, 2))
    assert (loaded.known[1, 2].reward, loaded.known[1, 1].reward) == (before, 1.0)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["runs/none"], "config.yaml is missing"),
        (["{run}", "--out", "{run}"], "exists already"),
        (["{run}", "--task", "a:B", "--reward", "c:d"], "--task='a:B': --reward is a task too"),
        (["{run}", "--limit", "0"], "use a whole number"),
        (["{bare}"], "has kept no samples"),
    ],
)
def test_bad_input_is_refused_before_anything_is_started(lab: Lab, tmp_path: Path, words: list[str], says: str) -> None:
    lab.keep()
    lab.judge(lambda t: pytest.fail("something was judged"))
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "config.yaml").write_text("run: {steps: 3}\n")
    filled = [word.format(run=lab.run, bare=bare) for word in words]
    assert says in refusal(cli.main, ["judge-again", *filled])
    assert not list(tmp_path.glob(".*"))


def test_samples_are_judged_by_a_reward_function_without_the_options_of_the_runs_own_task(lab: Lab) -> None:
    lab.stage.cfg = lab.stage.cfg.replace({"data.options": {"tests_per_problem": 3}})
    lab.judge(before(lab.keep()))
    words = ["--reward", "my_rewards:accuracy", "--style", "trl", "data.options.label=answer"]
    assert cli.main(["judge-again", str(lab.run), *words]) == 0
    assert lab.asked[-1].data.task == "overlap.rewards:RewardTask"
    assert lab.asked[-1].data.options == {"reward": "my_rewards:accuracy", "style": "trl", "label": "answer"}


class Adds(Task):
    """The problems of made runs."""

    def prompts(self, tokenizer, split):
        return []

    def program(self, prompt, answer):
        return program_of(prompt, answer)

    def reward(self, prompt, answer, judgement):
        return float(judgement is not None and judgement.verdict == "AC")


@pytest.mark.promise("judge-again")
def test_programs_are_judged_by_the_real_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maker = RunMaker(tmp_path / "made", RunShape(steps=1, groups=2, samples=4, kept="all", eval_samples=0, heldout=0))
    maker.write()
    prompts = tuple(maker._prompts["problems"])

    def prepare(cfg: Config, task: Any, scratch: Path, output: Any = None) -> RunInputs:
        return RunInputs(cfg, task, tmp_path, Tokenizer(), prompts, ())

    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr("overlap.commands.standalone.prepare", prepare)
    found = overlap.judge_again(tmp_path / "made", ["verify.cpu_s=1"], Adds())
    assert len(found.samples) == 8
    outcomes = {(s.before.verdict, s.after.verdict) for s in found.samples}
    assert {after for before, after in outcomes if before == "CE"} <= {"CE"}
    assert {after for before, after in outcomes if before == "RE"} <= {"RE"}
    assert {s.why for s in found.samples if s.after.verdict == "CE"} == {"SyntaxError: expected ':' (main.py, line 1)"}
    assert all(s.after.verdict for s in found.samples)
