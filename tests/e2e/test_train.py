"""Two steps on the real engine, the real learner and the real sandbox, with a tiny random policy."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml
from places import SUPPORT

from overlap.config.rollout import RolloutConfig
from overlap.record.json_lines import read_json_lines
from overlap.record.metrics import read_steps
from overlap.record.row_shapes import unpacked_floats

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


EVALUATION = {"eval_samples": 2, "eval_every": 1}


def config_of(policy: Path, run: Path) -> dict:
    return {
        "model": {"policy": str(policy), "dtype": "float32", "prompt_tokens": 64, "response_tokens": 12},
        "data": {"task": "toy:ToyTask"},
        "rollout": {"groups_per_step": 4, "samples_per_group": 6, "max_sequences": 32},
        "learn": {"lr": 3e-3, "micro_batch_tokens": 512, "truncated": "zero"},
        "run": {"steps": 2, "dir": str(run), "device": "cpu", "save_every": 1, "samples": "all"} | EVALUATION,
    }


@pytest.fixture(scope="module")
def run_dir(tiny_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the command line."""
    folder = tmp_path_factory.mktemp("run")
    overlap("train", "--config", _config_file(folder, tiny_policy, folder / "out"), run=folder / "out")
    return folder / "out"


def _config_file(folder: Path, policy: Path, run: Path) -> str:
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump(config_of(policy, run)))
    return str(file)


def overlap(*args: str, run: Path | None = None) -> subprocess.CompletedProcess[str]:
    """What the command has printed; the end of the log of ``run`` is shown when it fails."""
    command = [sys.executable, "-m", "overlap.cli", *args]
    done = subprocess.run(command, cwd=SUPPORT, capture_output=True, text=True, timeout=800)
    log = run / "run.log" if run else None
    assert done.returncode == 0, done.stderr + (log.read_text(errors="replace")[-4000:] if log and log.exists() else "")
    return done


def rows(run: Path) -> list[dict]:
    return read_steps(run / "metrics.jsonl")


@pytest.mark.promise("trains")
def test_the_run_takes_its_steps_and_the_engine_follows_the_learner(run_dir: Path) -> None:
    steps = rows(run_dir)
    assert [r["step"] for r in steps] == [1, 2]
    assert [r["version"] for r in steps] == [1, 2]
    assert all(r["rollout/parity_gap"] <= 1e-4 for r in steps)
    assert all(r["rollout/staleness_max"] == 0 for r in steps)
    assert all(r["reward/masked"] == 0 for r in steps)
    assert all(0 < r["reward/mean"] < 1 for r in steps)


def test_the_run_directory_has_what_a_person_looks_at(run_dir: Path) -> None:
    wanted = (
        "config.yaml metrics.jsonl events groups.jsonl trajectories.jsonl trace.json summary.json picture.png policy"
    )
    wanted += " report.html run.log"
    assert {*wanted.split()} <= {p.name for p in run_dir.iterdir()}
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["exit"] == "finished"
    assert summary["data"]["train"] == {"rows": 8, "left_out": {}}
    evaluated = summary["pass_at_1"]
    assert [e["step"] for e in evaluated["during"]] == [1]
    assert {e["temperature"] for e in (evaluated["before"], evaluated["after"])} == {RolloutConfig().temperature}
    assert [row["eval/pass_at_1"] for row in rows(run_dir)] == [
        e["value"] for e in (*evaluated["during"], evaluated["after"])
    ]
    stages = {event.get("cat") for event in json.loads((run_dir / "trace.json").read_text())}
    assert {"generate", "verify", "learn", "load"} <= stages


@pytest.mark.promise("samples")
def test_whole_groups_are_kept_with_their_programs_and_the_log_probs_of_both_sides(run_dir: Path) -> None:
    samples, groups = (read_json_lines(run_dir / f"{name}.jsonl") for name in ("trajectories", "groups"))
    assert {s["verdict"] for s in samples} <= {"AC", "WA"}
    kept = Counter((s["split"], s["step"], s["group"]) for s in samples)
    sizes = {(g["split"], g["step"], g["group"]): g["samples"] for g in groups}
    assert kept.items() <= sizes.items()
    assert {(split, step) for split, step, _ in kept} == {("heldout", n) for n in (0, 1, 2)} | {
        ("train", 1),
        ("train", 2),
    }
    assert all(s["program"]["source"] and s["tests"][0]["input"] is not None for s in samples)
    failed = [test for s in samples for test in s["tests"] if test["verdict"] == "WA"]
    assert failed
    assert all(test["got"] is not None for test in failed)
    learned = [s for s in samples if "learner_logprobs" in s]
    assert learned
    for s in learned:
        sides = [unpacked_floats(s[name]) for name in ("logprobs", "learner_logprobs")]
        assert max(abs(a - b) for a, b in zip(*sides, strict=True)) < 1e-3


@pytest.mark.promise("trains")
def test_the_final_policy_loads_in_transformers_and_has_moved(run_dir: Path, tiny_policy: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    before = AutoModelForCausalLM.from_pretrained(tiny_policy).eval()
    after = AutoModelForCausalLM.from_pretrained(run_dir / "policy").eval()
    ids = torch.tensor([AutoTokenizer.from_pretrained(run_dir / "policy")("say 1")["input_ids"]])
    with torch.no_grad():
        moved = (before(ids).logits - after(ids).logits).abs().max().item()
    assert math.isfinite(moved)
    assert moved > 1e-3


def test_the_best_policy_is_a_policy_with_the_figures_of_its_evaluation(run_dir: Path) -> None:
    from transformers import AutoModelForCausalLM

    assert AutoModelForCausalLM.from_pretrained(run_dir / "policy-best").num_parameters() > 0
    record = json.loads((run_dir / "policy-best" / "evaluation.json").read_text())
    assert record == json.loads((run_dir / "summary.json").read_text())["pass_at_1"]["best"]


@pytest.mark.wide
def test_the_engine_serves_the_trained_policy_standalone(run_dir: Path, tiny_policy: Path, tmp_path: Path) -> None:
    file = _config_file(tmp_path, run_dir / "policy", tmp_path / "unused")
    done = overlap("rollout", "--config", file, "--out", str(tmp_path / "rows.jsonl"))
    assert "12 answers to 2 prompts" in done.stderr
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == 12


@pytest.mark.promise("resume")
@pytest.mark.wide
def test_a_run_goes_on_from_its_checkpoint(run_dir: Path, tiny_policy: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run_dir, copy)
    done = overlap("train", "--config", _config_file(tmp_path, tiny_policy, copy), "--resume", "run.steps=3", run=copy)
    assert [(r["step"], r["version"]) for r in rows(copy)] == [(1, 1), (2, 2), (3, 3)]
    was, now = (json.loads((run / "summary.json").read_text())["pass_at_1"] for run in (run_dir, copy))
    assert now["before"] == was["before"]
    assert [e["step"] for e in now["during"]] == [1, 2]
    assert "before training: pass@1" in done.stderr


@pytest.mark.promise("from-rollouts")
def test_kept_samples_train_the_same_policy_each_time_without_an_engine(run_dir: Path, tmp_path: Path) -> None:
    for run in (tmp_path / "a", tmp_path / "b"):
        done = overlap("train", "--from-rollouts", str(run_dir), f"run.dir={run}", "run.save_every=0", run=run)
        assert "no engine, no verifier and no parity check" in done.stderr
        assert _learned(run) == _learned(run_dir)
        weights = [(folder / "policy" / "model.safetensors").read_bytes() for folder in (run, run_dir)]
        assert weights[0] == weights[1]


@pytest.mark.wide
def test_kept_episodes_with_forks_train_the_policy_that_they_trained_first(tiny_policy: Path, tmp_path: Path) -> None:
    """Engine and learner agree on each token of each branch, in the run and where it is learned from again."""
    tree = config_of(tiny_policy, first := tmp_path / "first")
    tree |= {"data": {"task": "toy:ForkingToyTask"}, "episode": {"tokens": 400, "turns": 4}}
    tree["run"] |= {"save_every": 0, "eval_samples": 0, "eval_every": 0}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(tree))
    overlap("train", "--config", str(tmp_path / "config.yaml"), run=first)
    assert {row["episode/branches_mean"] for row in rows(first)} == {3.0}
    overlap("train", "--from-rollouts", str(first), f"run.dir={tmp_path / 'again'}", run=tmp_path / "again")
    for run in (first, tmp_path / "again"):
        assert all(row["learn/ratio_max_logdiff"] < 1e-5 for row in rows(run))
    assert _learned(tmp_path / "again") == _learned(first)
    weights = [(run / "policy" / "model.safetensors").read_bytes() for run in (first, tmp_path / "again")]
    assert weights[0] == weights[1]


def _learned(run: Path) -> list[dict]:
    return [
        {k: v for k, v in row.items() if k.startswith(("learn/", "reward/")) and k[-2:] != "_s"} for row in rows(run)
    ]
