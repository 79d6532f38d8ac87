"""A learner is trained from the samples that a run has kept, by the same loop, and gets the same batches."""

from __future__ import annotations

import asyncio
import json
import random
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_parts import fake_prompts
from finished_steps import PROMPT
from journal import essence
from sessions import Episodic, Generator, Stage, Tokenizer, Verifier

import overlap
from overlap import cli
from overlap.config.fields import Config
from overlap.core import Batch, Request
from overlap.core.errors import ConfigError
from overlap.record.json_lines import read_json_lines
from overlap.record.kept_samples import KeptSamples
from overlap.record.resume import data_digest
from overlap.run.kept_rollouts import SavedGenerator, SavedVerifier, check_rollouts
from overlap.run.run_inputs import RunInputs

BOOTSTRAP = ("learn.advantage=gae", "learn.truncated=bootstrap", "rollout.samples_per_group=1")
KEPT = ("run.samples=all", "run.steps=6", "rollout.max_sequences=16")


def jitter(rng: random.Random) -> float:
    return rng.random() * 0.004


@dataclass
class Lab:
    """A folder with a run that keeps its samples, or that learns from those of ``source``."""

    folder: Path
    patch: pytest.MonkeyPatch
    source: Path = field(init=False)
    engine: type[Generator] = Generator
    truncated: float = 0.1

    def __post_init__(self) -> None:
        self.source = self.folder / "run"

    def staged(self, *overrides: str) -> Stage:
        """Eight prompts and a policy of nothing."""
        made = Stage(self.folder, self.patch, *KEPT, *overrides)

        def prepare(cfg: Config, task: Any, scratch: Path, output: Any = None) -> RunInputs:
            asked: Any = task or SimpleNamespace(program=lambda prompt, answer: None)
            return RunInputs(cfg, asked, made.policy, Tokenizer(), tuple(fake_prompts(8)), ())

        for module in ("overlap.run.training", "overlap.commands.train", "overlap.commands.standalone"):
            self.patch.setattr(f"{module}.prepare", prepare)
        self.patch.setattr("overlap.run.session.write_picture", lambda *a, **k: None)
        (made.policy / "config.json").write_text("{}")
        made.generator = self.engine(seed=3, seconds=jitter, truncated=self.truncated, slots=16)
        made.verifier = Verifier(seed=3, seconds=jitter, solved=0.3, failed=0.05, workers=8)
        return made

    def kept(self, *overrides: str) -> list[Any]:
        """A run that keeps its samples; returns what its learner got."""
        made = self.staged(*overrides)
        overlap.train(made.cfg)
        return [_whole(batch) for batch in made.learner.batches]

    def learn(self, *words: str, name: str = "a") -> int:
        """``overlap train --from-rollouts`` into folder/name; returns its exit status."""
        return cli.main(["train", "--from-rollouts", str(self.source), f"run.dir={self.folder / name}", *words])

    def again(self, *words: str, name: str = "a") -> list[Any]:
        """What the learner gets from kept samples, where nothing but a learner can be started."""
        made = self.staged()
        self.no_doors()
        assert self.learn(*words, name=name) == 0
        return [_whole(batch) for batch in made.learner.batches]

    def no_doors(self) -> None:
        for door in ("overlap.generate.client.EngineClient", "overlap.verify.verifier.SandboxVerifier"):
            self.patch.setattr(door, None)


def _whole(batch: Batch) -> Any:
    """Also the versions of tokens, and how each test was judged: all but times."""
    return essence(batch), [(s.trajectory.spans, s.judgement) for s in batch.all_samples]


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    return Lab(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """A run one version behind, and what its learner got."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        made = Lab(tmp_path_factory.mktemp("one"), monkeypatch)
        return made.source, made.kept("rollout.max_staleness=1")


@pytest.fixture
def other(lab: Lab, one: tuple[Path, list[Any]]) -> Lab:
    """Learns from ``one``."""
    lab.source = one[0]
    return lab


@pytest.mark.promise("from-rollouts")
@pytest.mark.parametrize(("staleness", "refill"), [(0, 0), (1, 2), (3, 0)])
def test_the_batches_are_those_of_the_run_each_time(lab: Lab, staleness: int, refill: int) -> None:
    batches = lab.kept(f"rollout.max_staleness={staleness}", f"rollout.refill_groups={refill}")
    assert lab.again(name="a") == lab.again(name="b") == batches
    assert len(batches) > 1


@pytest.mark.promise("from-rollouts")
@pytest.mark.parametrize("staleness", [0, 1])
def test_the_batches_of_episodes_are_those_of_the_run_with_what_each_fork_was_sampled_behind(
    lab: Lab, staleness: int
) -> None:
    lab.engine = Episodic
    batches = lab.kept(f"rollout.max_staleness={staleness}")
    assert lab.again() == batches
    text = (lab.source / "trajectories.jsonl").read_text()
    (lab.source / "trajectories.jsonl").write_text(re.sub(r', "prompt_token_ids": "[^"]*"', "", text))
    assert lab.learn(name="b") == 2


def test_no_parity_is_claimed_where_no_engine_is(other: Lab, capsys: pytest.CaptureFixture) -> None:
    other.again()
    made = other.folder / "a"
    gaps = [row["rollout/parity_gap"] for row in read_json_lines(made / "metrics.jsonl") if row["version"]]
    assert set(gaps) == {None}
    shown = capsys.readouterr().err
    assert f"48 samples of {other.source / 'trajectories.jsonl'}; no engine, no verifier and no parity check" in shown
    assert "verifier       " not in shown
    assert "engine about" not in shown


def test_a_run_that_was_cut_off_and_went_on_has_kept_each_sample_once(lab: Lab) -> None:
    batches = lab.kept("run.save_every=2", "run.keep_last=9")
    shutil.rmtree(lab.source / "checkpoints" / "step-000006")
    made = lab.staged("run.save_every=2", "run.keep_last=9")
    lab.patch.setattr("overlap.run.training._fits", lambda cfg, checkpoint: None)
    overlap.train(made.cfg, resume=True)
    assert len(KeptSamples.load(lab.source / "trajectories.jsonl").known) == 48
    assert lab.again() == batches


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("run.steps=7",), "run.steps=7: .* has the samples of 6 steps"),
        (("rollout.max_staleness=0",), "rollout.max_staleness=0: samples of step 2 are 1 versions old"),
        (("rollout.groups_per_step=6",), "rollout.groups_per_step=6: step 1 would learn from later policies"),
        (("run.eval_samples=4",), "run.eval_samples=4: there is no engine to evaluate with"),
        (("--resume", "run.dir=RUN"), "starts a new run: leave --resume out"),
        (("rollout.samples_per_group=5",), "has the samples of 0 steps"),
        (("run.seed=1",), "group 0 answers 'p.', and this run would ask 'p.' there: use run.seed of that run"),
    ],
)
def test_what_could_not_be_learned_from_them_is_refused_before_anything_starts(
    lab: Lab, capsys: pytest.CaptureFixture, one: tuple[Path, list[Any]], words: tuple[str, ...], told: str
) -> None:
    lab.staged()
    shutil.copytree(one[0], lab.source)
    _aged(lab.source / "trajectories.jsonl")
    for dry in ((), ("--dry-run",)):
        assert lab.learn(*(word.replace("RUN", str(lab.source)) for word in words), *dry) == 2
        error = capsys.readouterr().err.splitlines()[-1]
        assert re.search(told, error), error
    assert not (lab.folder / "a").exists()


def _aged(file: Path) -> None:
    """Every sample is of the version before its step's, as far as there is one."""
    rows = list(map(json.loads, file.read_text().splitlines()))
    versions = {step: index for index, step in enumerate(sorted({row["step"] for row in rows}))}
    for row in rows:
        row["versions"] = [[max(0, versions[row["step"]] - 1), 0, 1]]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def test_samples_of_other_prompts_are_refused(other: Lab) -> None:
    rollouts, cfg = KeptSamples.load(other.source / "trajectories.jsonl"), other.staged("rollout.max_staleness=1").cfg
    check_rollouts(rollouts, cfg, data_digest(fake_prompts(8)), fake_prompts(8))
    with pytest.raises(ConfigError, match="answer other prompts"):
        check_rollouts(rollouts, cfg, data_digest(fake_prompts(7)), fake_prompts(7))


def test_a_cut_off_sample_that_bootstraps_is_learned_from_again_if_it_has_two_tokens(lab: Lab) -> None:
    """Whether a step of such samples makes a version depends on their lengths."""
    lab.truncated = 0.7
    batches = lab.kept(*BOOTSTRAP)
    assert len(batches) > 1
    assert lab.again(*BOOTSTRAP) == batches


@pytest.mark.parametrize("where", ["nowhere", "policy"])
def test_a_place_without_kept_samples_is_refused_in_one_line(
    lab: Lab, capsys: pytest.CaptureFixture, where: str
) -> None:
    lab.staged()
    lab.source = lab.folder / where
    assert lab.learn() == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "keep samples by run.samples=all" in error


def test_what_was_not_kept_comes_back_empty_and_by_name(one: tuple[Path, list[Any]]) -> None:
    rollouts = KeptSamples.load(one[0] / "trajectories.jsonl")

    async def asked() -> Any:
        trajectory = await SavedGenerator(rollouts).generate(Request(99, 0, PROMPT))
        return await SavedVerifier(rollouts).score(trajectory)

    given = asyncio.run(asked())
    assert (given.reward, given.failure) == (None, "not in trajectories.jsonl")
    assert (len(given.trajectory.token_ids), given.trajectory.finish) == (0, "abort")
