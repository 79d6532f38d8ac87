"""Sampling and filtering without a trainer: what is written appears whole, and bad input starts nothing."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from fake_parts import fake_prompts
from sessions import Generator, Tokenizer, Verifier

import overlap
from overlap import cli
from overlap.commands import standalone
from overlap.config.fields import Config
from overlap.config.load import load_config
from overlap.core import WeightUpdate
from overlap.core.errors import ConfigError
from overlap.run.run_inputs import RunInputs
from sandbox import Judgement, Problem, Program, SandboxError


class _Serving(Generator):
    """Serves the checkpoint by itself, as an engine without a trainer does."""

    async def start(self) -> None:
        started.append("engine")
        await self.load(WeightUpdate(0, "fake", {}))


started: list[str] = []


@pytest.fixture(autouse=True)
def fakes(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fakes behind the commands; four prompts to train on, none held out."""
    policy = tmp_path_factory.mktemp("policy")
    (policy / "config.json").write_text("{}")

    def prepare(cfg: Config, task: Any, scratch: Path, output: Any) -> RunInputs:
        asked: Any = task or SimpleNamespace(program=lambda prompt, answer: None)
        return RunInputs(cfg, asked, policy, Tokenizer(), tuple(fake_prompts(4)), ())

    started.clear()
    monkeypatch.setattr(standalone, "prepare", prepare)
    monkeypatch.setattr("overlap.generate.client.EngineClient", lambda *a, **k: _Serving())
    monkeypatch.setattr("overlap.verify.verifier.SandboxVerifier", lambda *a, **k: Verifier())


def test_answers_are_written_with_their_verdicts(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / "rows.jsonl"
    for _ in range(2):  # what the same command wrote may be written over
        command = ["rollout", "--split", "train", "--limit", "3", "rollout.samples_per_group=2", "--out", str(out)]
        assert cli.main(command) == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert sorted({row["prompt_id"] for row in rows}) == ["p1", "p2", "p3"]  # in the order of a run
    assert len(rows) == 6
    assert {(row["schema"], row["split"], row["step"], *row["kept_as"]) for row in rows} == {(3, "train", 0, "all")}
    assert "6 answers to 3 prompts" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["rows.jsonl"]


@pytest.mark.parametrize("out", ["-", "/dev/stdout"])
@pytest.mark.parametrize(
    ("command", "key"),
    [
        (["rollout", "--split", "train", "--out"], "answer"),
        (["filter", "data.train=x.jsonl", "--out"], "passes"),
    ],
)
def test_standard_output_gets_the_rows_and_nothing_else(
    command: list[str],
    key: str,
    out: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main([*command, out]) == 0
    rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert {key in row for row in rows} == {True}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.promise("python")
def test_python_draws_what_the_command_does(tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    cfg = load_config({"rollout.samples_per_group": 2, "run.eval_samples": 3})
    done = overlap.rollout(cfg, split="train", limit=3, out=tmp_path / "rows.jsonl")
    assert [s.trajectory.request.prompt.id for s in done.samples] == ["p3", "p3", "p2", "p2", "p1", "p1"]
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == 6
    rate = overlap.evaluate(cfg, split="train", limit=2)
    assert (len(rate.tallies), rate.samples, rate.k) == (2, 6, 3)
    told = capfd.readouterr()
    assert told.out == ""
    assert str(done) in told.err
    assert f"2 prompts: {rate}" in told.err


@pytest.mark.parametrize(
    ("work", "field"),
    [
        (lambda cfg: overlap.rollout(cfg, split="test"), "split"),
        (lambda cfg: overlap.evaluate(cfg, split="train", limit=0), "limit"),
        (lambda cfg: overlap.evaluate(cfg.replace(run={"eval_samples": 0})), "run.eval_samples"),
        (lambda cfg: overlap.evaluate(cfg), "data.heldout"),
    ],
)
def test_python_is_refused_before_anything_is_started(work: Any, field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        work(load_config())
    assert caught.value.field == field
    assert started == []


class _Pool:
    """Stands for ``sandbox.Pool``; ``made`` has the folders in which the files of each one lie."""

    made: ClassVar[list[Path]] = []

    def __init__(self, *, isolation: str, packages: tuple[str, ...], directory: str) -> None:
        assert Path(directory).is_dir()
        self.made.append(Path(directory))

    async def __aenter__(self) -> _Pool:
        return self

    async def close(self) -> None:
        pass

    def pids(self) -> tuple[int, ...]:
        return ()

    async def judge(self, problem: Problem, program: Program, *, turn: int = 0) -> Judgement:
        raise SandboxError("no disk")


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of one problem, and a sandbox that always fails."""
    _Pool.made.clear()
    monkeypatch.setenv("OVERLAP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("sandbox.pool.pool.Pool", _Pool)
    file = tmp_path / "data" / "problems \U0001f600 1.jsonl"
    file.parent.mkdir()
    tests = [{"input": "[1]", "output": "2"}, {"input": "[4]", "output": "5"}]
    row = {"id": "p", "statement": "Write inc.", "kind": "function", "fn_name": "inc", "tests": tests}
    file.write_text(json.dumps({**row, "reference": "def inc(n):\n    return n + 1\n"}) + "\n")
    return file


def test_what_we_could_not_judge_is_no_fault_of_the_data(data: Path, capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["check-data", str(data)]) == 0
    err = capsys.readouterr().err
    assert "1 of 1 problems bring a reference, 0 of those are rejected" in err
    assert f"1 could not be judged by our fault (a note), first {data}:1 (SandboxError: no disk)" in err


@pytest.mark.parametrize("name", ["\U0001f600.jsonl", "no\udcffutf.jsonl", "a: b #c.jsonl", "0x10", "'\"\x7f.jsonl"])
def test_a_problem_file_may_have_any_name(data: Path, name: str) -> None:
    file = data.rename(data.with_name(name))
    out = data.parent / "found.jsonl"
    assert cli.main(["check-data", str(file), "--out", str(out)]) == 0
    assert json.loads(out.read_text())["place"] == f"{file}:1"
