"""A learner is trained from the samples that a run has kept, by the same loop, and gets the same batches."""

from __future__ import annotations

import asyncio
import json
import random
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from journal import essence
from sessions import Generator, Stage, Tokenizer, Verifier

import overlap
from overlap import cli
from overlap.commands import standalone
from overlap.config import Config
from overlap.core import Batch, Prompt, Request, Scored, Trajectory, VersionSpan, WeightUpdate
from overlap.errors import ConfigError
from overlap.fakes import fake_prompts
from overlap.prepare.run_inputs import RunInputs
from overlap.record import Rollouts, data_digest, read_json_lines
from overlap.replay.kept_rollouts import SavedGenerator, SavedVerifier, check_rollouts
from overlap.run import session, training

KEPT = ("run.keep_rollouts=true", "run.steps=6", "rollout.max_sequences=16")


def jitter(rng: random.Random) -> float:
    return rng.random() * 0.004


@pytest.fixture(autouse=True)
def prepared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Eight prompts and a policy of nothing."""
    _prepared(monkeypatch, tmp_path)


def _prepared(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    def prepare(cfg: Config, task: Any, scratch: Path) -> RunInputs:
        return RunInputs(cfg, task, folder / "policy", Tokenizer(), tuple(fake_prompts(8)), ())

    monkeypatch.setattr(training, "prepare", prepare)
    monkeypatch.setattr("overlap.commands.train.prepare", prepare)  # of a dry run
    monkeypatch.setattr(standalone, "prepare", prepare)
    monkeypatch.setattr(session, "write_picture", lambda *a, **k: None)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """A folder with a run one version behind, and what its learner got."""
    folder = tmp_path_factory.mktemp("one")
    with pytest.MonkeyPatch.context() as monkeypatch:
        _prepared(monkeypatch, folder)
        return folder, kept(folder, monkeypatch, "rollout.max_staleness=1")


def staged(folder: Path, monkeypatch: pytest.MonkeyPatch, *overrides: str) -> Stage:
    made = Stage(folder, monkeypatch, *KEPT, *overrides)
    (made.policy / "config.json").write_text("{}")
    made.generator = Generator(seed=3, seconds=jitter, truncated=0.1, slots=16)
    made.verifier = Verifier(seed=3, seconds=jitter, solved=0.3, failed=0.05, workers=8)
    return made


def kept(folder: Path, monkeypatch: pytest.MonkeyPatch, *overrides: str) -> list[Any]:
    """A run that keeps its samples in folder/run; returns what its learner got."""
    made = staged(folder, monkeypatch, *overrides)
    overlap.train(made.cfg)
    return [_whole(batch) for batch in made.learner.batches]


def again(folder: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> list[Any]:
    """``overlap train --from-rollouts folder/run`` into folder/name, where nothing but a learner can be started."""
    made = staged(folder, monkeypatch)
    _prepared(monkeypatch, folder)
    for door in ("overlap.generate.EngineClient", "overlap.verify.SandboxVerifier"):
        monkeypatch.setattr(door, None)
    assert cli.main(["train", "--from-rollouts", str(folder / "run"), *words]) == 0
    return [_whole(batch) for batch in made.learner.batches]


def _whole(batch: Batch) -> Any:
    """Also the versions of tokens, and how each test was judged: all but times."""
    samples = batch.all_samples
    return essence(batch), [(s.trajectory.spans, s.judgement) for s in samples]


@pytest.mark.parametrize(("staleness", "refill"), [(0, 0), (1, 2), (3, 0)])
def test_the_batches_are_those_of_the_run_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, staleness: int, refill: int
) -> None:
    sizes = f"rollout.max_staleness={staleness}", f"rollout.refill_groups={refill}"
    batches = kept(tmp_path, monkeypatch, *sizes)
    for name in ("a", "b"):
        assert again(tmp_path, monkeypatch, f"run.dir={tmp_path / name}") == batches
    assert len(batches) > 1


@pytest.mark.parametrize(("staleness", "bound"), [(0, 0.3), (2, 0.25)])
def test_solved_prompts_are_left_out_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, staleness: int, bound: float
) -> None:
    left_out = f"data.drop_solved={bound}", f"rollout.max_staleness={staleness}", "run.steps=8"
    batches = kept(tmp_path, monkeypatch, *left_out)
    assert again(tmp_path, monkeypatch, f"run.dir={tmp_path / 'a'}") == batches
    staged(tmp_path, monkeypatch)
    command = ["train", "--from-rollouts", str(tmp_path / "run"), "data.drop_solved=0", f"run.dir={tmp_path / 'b'}"]
    assert cli.main(command) == 2
    assert "and this run would ask" in capsys.readouterr().err.splitlines()[-1]


def test_no_parity_is_claimed_where_no_engine_is(
    one: tuple[Path, list[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    again(one[0], monkeypatch, f"run.dir={tmp_path / 'a'}")
    gaps = [row["rollout/parity_gap"] for row in read_json_lines(tmp_path / "a" / "metrics.jsonl") if row["version"]]
    assert set(gaps) == {None}
    shown = capsys.readouterr().err
    assert f"48 samples of {one[0] / 'run' / 'rollouts.jsonl'}; no engine, no verifier and no parity check" in shown
    assert "verifier       " not in shown
    assert "engine about" not in shown
    assert not (tmp_path / "a" / "rollouts.jsonl").exists()


def test_a_dry_run_counts_what_would_be_started(
    one: tuple[Path, list[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    assert again(one[0], monkeypatch, f"run.dir={tmp_path / 'a'}", "--dry-run") == []
    told = capsys.readouterr().out
    assert re.search(r"^rollouts +48 samples of .*; no engine, no verifier and no parity check$", told, re.MULTILINE)
    assert re.search(r"^memory +machine at most", told, re.MULTILINE)
    assert "engine weights" not in told
    assert "worker(s)" not in told


def test_another_learner_may_learn_from_them_for_fewer_steps(
    one: tuple[Path, list[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("learn.lr=1e-3", "run.steps=3", "rollout.max_staleness=2", f"run.dir={tmp_path / 'a'}")
    assert again(one[0], monkeypatch, *words) == one[1][:3]


def test_a_run_that_was_cut_off_and_went_on_has_kept_each_sample_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = kept(tmp_path, monkeypatch, "run.save_every=2", "run.keep_last=9")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-000006")
    made = staged(tmp_path, monkeypatch, "run.save_every=2", "run.keep_last=9")
    monkeypatch.setattr(training, "_fits", lambda cfg, checkpoint: None)
    overlap.train(made.cfg, resume=True)
    assert len(Rollouts.load(tmp_path / "run" / "rollouts.jsonl").known) == 48
    assert again(tmp_path, monkeypatch, f"run.dir={tmp_path / 'a'}") == batches


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("run.steps=7",), "run.steps=7: .* has the samples of 6 steps"),
        (("rollout.max_staleness=0",), "rollout.max_staleness=0: samples of step 2 are 1 versions old"),
        (("rollout.groups_per_step=6",), "rollout.groups_per_step=6: step 1 would learn from later policies"),
        (("run.eval_samples=4",), "run.eval_samples=4: there is no engine to evaluate with"),
        (("--resume",), "begins a new run: leave --resume out"),
        (("rollout.samples_per_group=5",), "has the samples of 0 steps"),
        (("run.seed=1",), "group 0 answers 'p.', and this run would ask 'p.' there: use run.seed of that run"),
    ],
)
def test_what_could_not_be_learned_from_them_is_refused_before_anything_starts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
    one: tuple[Path, list[Any]],
    words: tuple[str, ...],
    told: str,
) -> None:
    staged(tmp_path, monkeypatch)
    shutil.copytree(one[0] / "run", tmp_path / "run")
    _aged(tmp_path / "run" / "rollouts.jsonl")
    where = tmp_path / ("run" if "--resume" in words else "new")
    command = ["train", "--from-rollouts", str(tmp_path / "run"), f"run.dir={where}", *words]
    for dry in ([], ["--dry-run"]):
        assert cli.main([*command, *dry]) == 2
        error = capsys.readouterr().err.splitlines()[-1]
        assert re.search(told, error), error
    assert not (tmp_path / "new").exists()


def _aged(file: Path) -> None:
    """Every sample is of the version before its step's, as far as there is one."""
    head, *rows = map(json.loads, file.read_text().splitlines())
    versions = {step: index for index, step in enumerate(sorted({row["step"] for row in rows}))}
    for row in rows:
        row["spans"] = [[max(0, versions[row["step"]] - 1), 0, 1]]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in (head, *rows)))


def test_samples_of_other_prompts_are_refused(
    one: tuple[Path, list[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollouts = Rollouts.load(one[0] / "run" / "rollouts.jsonl")
    cfg = staged(tmp_path, monkeypatch, "rollout.max_staleness=1").cfg
    check_rollouts(rollouts, cfg, data_digest(fake_prompts(8)), fake_prompts(8))
    with pytest.raises(ConfigError, match="answer other prompts"):
        check_rollouts(rollouts, cfg, data_digest(fake_prompts(7)), fake_prompts(7))


def test_a_step_without_anything_to_learn_leaves_the_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def sample(group: int, number: int, reward: float) -> Scored:
        request = Request(group, number, Prompt("p", ()))
        return Scored(Trajectory(request, (), (), "", "stop", (VersionSpan(0, 0, 1),), 0.0, 0.0), reward)

    rewards = [1.0] * 8 + [1.0, 0.0] * 4  # two steps of two groups; the first are of equal rewards
    known = {divmod(i, 4): sample(*divmod(i, 4), reward) for i, reward in enumerate(rewards)}
    cfg = staged(tmp_path, monkeypatch, "run.steps=2").cfg
    check_rollouts(Rollouts(tmp_path, "digest", known, {}), cfg, "digest", [Prompt("p", ())])


@pytest.mark.parametrize("where", ["nowhere", "policy"])
def test_a_place_without_kept_samples_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, where: str
) -> None:
    staged(tmp_path, monkeypatch)
    assert cli.main(["train", "--from-rollouts", str(tmp_path / where)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "keep samples by run.keep_rollouts=true" in error


def test_what_was_not_kept_comes_back_empty_and_by_name(one: tuple[Path, list[Any]]) -> None:
    rollouts = Rollouts.load(one[0] / "run" / "rollouts.jsonl")

    async def asked() -> Any:
        trajectory = await SavedGenerator(rollouts).generate(Request(99, 0, fake_prompts(1)[0]))
        return await SavedVerifier(rollouts).score(trajectory)

    scored = asyncio.run(asked())
    assert (scored.reward, scored.failure) == (None, "not in rollouts.jsonl")
    assert (len(scored.trajectory.token_ids), scored.trajectory.finish) == (0, "abort")


class _Serving(Generator):
    async def start(self) -> None:
        await self.load(WeightUpdate(0, "fake", {}))


def test_samples_of_a_rollout_alone_are_learned_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    made, file = staged(tmp_path, monkeypatch, "run.steps=1"), tmp_path / "kept.jsonl"
    monkeypatch.setattr("overlap.generate.EngineClient", lambda *a, **k: _Serving())
    sizes = ["rollout.samples_per_group=4", "rollout.groups_per_step=2", "run.seed=5"]
    for _ in range(2):  # what the same command wrote may be written over
        assert cli.main(["rollout", "--split", "train", "--limit", "4", "--rollouts", str(file), *sizes]) == 0
    for door in ("overlap.generate.EngineClient", "overlap.verify.SandboxVerifier"):
        monkeypatch.setattr(door, None)
    command = ["train", "--from-rollouts", str(file), *sizes, f"run.dir={tmp_path / 'a'}"]
    assert cli.main([*command, "run.steps=1"]) == 0
    (batch,) = made.learner.batches
    assert sorted(group.id for group in (*batch.groups, *batch.dropped)) == [0, 1]
    assert cli.main([*command[:-1], f"run.dir={tmp_path / 'b'}", "run.steps=3"]) == 2
    assert "samples of step 2 are 1 versions old" in capsys.readouterr().err.splitlines()[-1]


def test_a_rollout_keeps_the_prompts_of_a_run_only(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["rollout", "--rollouts", str(tmp_path / "kept.jsonl")]) == 2
    assert "add --split train" in capsys.readouterr().err
