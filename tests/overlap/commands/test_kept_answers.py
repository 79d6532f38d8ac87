"""Samples that a run has kept are judged once more: what changed is told, and a learner can learn from it."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_parts import fake_prompts
from made_run import RunMaker, RunShape, program_of
from rows import refusal
from sessions import Generator, Stage, Tokenizer, Verifier

import overlap
from overlap import Task, cli
from overlap.commands.answering import ScoredAnswers
from overlap.commands.kept_answers import Comparison, JudgedAgain, KeptAnswer, Outcome
from overlap.config.fields import Config
from overlap.core import Prompt, Scored, Trajectory
from overlap.record.json_lines import read_json_lines
from overlap.run.run_inputs import RunInputs

KEPT = ("run.steps=4", "run.samples=all", "run.trackers=[]")


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
        return read_json_lines(self.run / "trajectories.jsonl")

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


def again(lab: Lab, **asked: Any) -> ScoredAnswers:
    """Judge the answers of the run by its configuration."""
    return overlap.rollout(lab.stage.cfg, answers=lab.run, **asked)


def compared(done: ScoredAnswers) -> Comparison:
    assert done.again is not None
    return done.again


@pytest.mark.promise("judge-again")
def test_the_same_judge_changes_nothing(lab: Lab) -> None:
    rows = lab.keep()
    lab.judge(before(rows))
    done = again(lab, out=lab.folder / "again.jsonl")
    assert compared(done).changed == []
    assert len(compared(done).answers) == len(rows) > 0
    written = read_json_lines(lab.folder / "again.jsonl")
    same = ("id", "prompt_id", "token_ids", "logprobs", "answer", "finish", "versions", "reward", "failure")
    assert [[row[name] for name in same] for row in written] == [[row[name] for name in same] for row in rows]


@pytest.mark.promise("judge-again")
def test_what_changed_is_shown_by_figure_verdict_and_sample(lab: Lab, capsys: Any) -> None:
    rows = lab.keep()
    kept = before(rows)
    other = next(row["prompt_id"] for row in rows if row["reward"] and row["prompt_id"] != rows[0]["prompt"])

    def ruling(trajectory: Trajectory) -> Any:
        if trajectory.request.place == (0, 0):
            return "the worker was killed"
        return 0.0 if trajectory.request.prompt.id == other else kept(trajectory)

    lab.judge(ruling)
    assert cli.main(["rollout", "--answers", str(lab.run)]) == 0
    shown = capsys.readouterr().out
    lost = [row for row in rows if row["prompt_id"] == other and row["reward"]]
    assert f"{len(rows)} samples of {lab.run}/trajectories.jsonl judged again, {len(lost) + 1} changed" in shown
    assert re.search(rf"^reward 1 -> reward 0 +{len(lost)}$", shown, re.MULTILINE)
    assert re.search(r"^ +step 1 g0s0 .* -> not judged   the worker was killed$", shown, re.MULTILINE)
    for row in lost:
        assert re.search(
            rf"g{row['group']}s{row['sample']} +{other} +no verdict 1 -> no verdict 0$", shown, re.MULTILINE
        )
    figures = compared(again(lab)).figures()
    assert figures["mean reward"][1] < figures["mean reward"][0]
    assert figures["not judged"][1] == figures["not judged"][0] + 1


@pytest.mark.promise("judge-again")
def test_another_verdict_for_the_same_reward_is_a_change() -> None:
    kept = KeptAnswer({"reward": 0.0, "verdict": "WA", "failure": ""}, scored=None)  # type: ignore[arg-type]
    assert JudgedAgain(kept, Outcome(0.0, "TLE")).changed
    assert not JudgedAgain(kept, Outcome(0.0, "WA", "says it in other words")).changed


def test_a_learner_learns_from_the_new_rewards(lab: Lab) -> None:
    lab.keep()
    lab.judge(lambda t: float(t.request.sample == 0))
    new = lab.folder / "again.jsonl"
    assert cli.main(["rollout", "--answers", str(lab.run), "--out", str(new)]) == 0
    words = ["--config", str(lab.run / "config.yaml"), "--from-rollouts", str(new), f"run.dir={lab.folder / 'b'}"]
    assert cli.main(["train", *words]) == 0
    batches = lab.stage.learner.batches[-4:]
    rewards = [[s.reward for s in group.samples] for batch in batches for group in batch.groups]
    assert rewards == [[1.0, 0.0, 0.0, 0.0]] * len(rewards) != []


def test_a_run_of_another_version_is_refused_as_one(lab: Lab, capsys: Any) -> None:
    lab.keep()
    config = lab.run / "config.yaml"
    config.write_text(config.read_text().replace("drop_solved:", "dropped_when_solved:"))
    assert cli.main(["rollout", "--answers", str(lab.run)]) == 2
    assert "another version made this run" in capsys.readouterr().err


def test_a_configuration_beside_answers_in_a_file_need_not_be_a_runs(lab: Lab) -> None:
    lab.keep()
    lab.judge(lambda t: float(t.request.sample == 0))
    new, beside = lab.folder / "mine" / "again.jsonl", lab.folder / "mine" / "config.yaml"
    new.parent.mkdir()
    assert cli.main(["rollout", "--answers", str(lab.run), "--out", str(new)]) == 0
    beside.write_text("learn:\n  lr: 1.0e-5\n")
    words = ["--config", str(lab.run / "config.yaml"), "--from-rollouts", str(new), f"run.dir={lab.folder / 'b'}"]
    assert cli.main(["train", *words]) == 0


def test_answers_to_problems_that_are_gone_are_left_out_and_counted(lab: Lab) -> None:
    rows = lab.keep()
    lab.judge(lambda t: 1.0)
    lab.prompts = lab.prompts[:7]
    gone = sum(row["prompt_id"] == "p7" for row in rows)
    assert compared(again(lab)).left_out == {"the data has no such problem": gone}


def test_samples_that_are_kept_for_people_can_be_judged_and_not_learned_from(lab: Lab, capsys: Any) -> None:
    lab.stage.cfg = lab.stage.cfg.replace({"run.samples": "some"})
    rows = lab.keep()
    judge = lab.judge(lambda t: 1.0)
    shown = lab.folder / "shown.jsonl"
    done = again(lab, out=shown, limit=2)
    first = list(dict.fromkeys(row["prompt_id"] for row in read_json_lines(lab.run / "trajectories.jsonl")))[:2]
    assert {t.text for t in judge.seen} == {row["answer"] for row in rows if row["prompt_id"] in first}
    assert compared(done).source.name == "trajectories.jsonl"
    assert cli.main(["train", "--from-rollouts", str(shown), f"run.dir={lab.folder / 'b'}"]) == 2
    assert "has samples to look at alone: name a run with run.samples=all" in capsys.readouterr().err
    places = ("split", "step", "group", "sample", "prompt_id")
    was = {tuple(row[name] for name in places) for row in read_json_lines(lab.run / "trajectories.jsonl")}
    assert {tuple(row[name] for name in places) for row in read_json_lines(shown)} <= was
    assert compared(overlap.rollout(lab.stage.cfg, answers=shown)).changed == []  # what it has written is read as well
    assert cli.main(["show", str(shown), "--group", "0"]) == 0
    assert "reward 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["runs/none"], "config.yaml is missing"),
        (["{run}", "--out", "{run}"], "--out"),
        (["{run}", "--out", "{run}/trajectories.jsonl"], "has the answers that are judged: name another file"),
        (["{run}", "--limit", "0"], "use a whole number"),
        (["{run}", "no_such.field=1"], "no_such.field"),
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
    assert says in refusal(cli.main, ["rollout", "--answers", *filled])


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
    cfg = Config().replace({"verify.cpu_s": 1})
    found = compared(overlap.rollout(cfg, Adds(), answers=tmp_path / "made")).answers
    assert len(found) == 8
    outcomes = {(s.before.verdict, s.after.verdict) for s in found}
    assert {after for before, after in outcomes if before == "CE"} <= {"CE"}
    assert {after for before, after in outcomes if before == "RE"} <= {"RE"}
    assert {s.after.why for s in found if s.after.verdict == "CE"} == {"SyntaxError: expected ':' (main.py, line 1)"}
    assert all(s.after.verdict for s in found)
