"""The recipe's own commands on the real engine, the real learner and the real sandbox, with a tiny random policy."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from places import SUPPORT
from rows import OWN, jsonl

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


def recipe(command: str, *args: object) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", f"recipes.code_rl.{command}", *map(str, args)]
    done = subprocess.run(words, cwd=SUPPORT, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.wide
def test_an_evaluation_draws_what_is_missing_and_then_nothing(tiny_policy: Path, tmp_path: Path) -> None:
    source = jsonl(tmp_path / "own.jsonl", *({**OWN, "id": f"inc{n}"} for n in range(3)))
    (file := tmp_path / "config.yaml").write_text(
        yaml.safe_dump({"model": {"dtype": "float32", "response_tokens": 12}, "run": {"device": "cpu"}})
    )
    words = [tiny_policy, "--config", file, "--set", source, "--out", tmp_path / "out"]
    counts = [recipe("evaluate", *words, "--samples", samples).stderr for samples in (2, 3, 3)]
    assert ["starting the engine" in said for said in counts] == [True, True, False]
    assert "3 to draw, 0 more to judge" in counts[1]
    found = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert [tally["samples"] for tally in found["sets"][0]["tallies"]] == [3, 3, 3]
    rows = [json.loads(line) for line in (tmp_path / "out" / "answers.jsonl").read_text().splitlines()]
    assert sum("text" in row for row in rows) == 9
    assert rows[0]["law"]["top_p"] == 0.95


@pytest.mark.wide
def test_the_second_stage_learns_from_the_policy_of_the_first(tiny_policy: Path, tmp_path: Path) -> None:
    files = []
    for name in ("first", "second"):
        stage = {
            "model": {"policy": str(tiny_policy), "dtype": "float32", "prompt_tokens": 64, "response_tokens": 12},
            "data": {"task": "toy:ToyTask"},
            "rollout": {"groups_per_step": 4, "samples_per_group": 6, "max_sequences": 32},
            "learn": {"lr": 3e-3, "micro_batch_tokens": 512},
            "run": {"steps": 1, "dir": str(tmp_path / name), "device": "cpu", "save_every": 1, "eval_samples": 0},
        }
        (file := tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(stage))
        files.append(file)
    said = recipe("stages", *files).stdout
    assert "stage 1 of 2, first: begins" in said
    trained = yaml.safe_load((tmp_path / "second" / "config.yaml").read_text())
    assert trained["model"]["policy"] == str(tmp_path / "first" / "policy")
    assert (tmp_path / "second" / "policy" / "config.json").is_file()
    again = recipe("stages", *files).stdout.splitlines()
    assert [line.partition(": ")[2].partition(",")[0] for line in again] == ["finished", "finished"]
