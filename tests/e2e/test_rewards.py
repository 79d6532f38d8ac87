"""A reward function of another trainer on the real engine and learner; its configuration alone plans the same run."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from places import ROOT
from tiny_policy import make_tiny_policy

from overlap.record.json_lines import read_json_lines

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
REWARD = """
calls = 0

async def even(prompts, completions, completion_ids, word, **kwargs):
    global calls
    calls += 1
    assert prompts[0][0]["content"].startswith(word[0]) and len(completion_ids[0]) > 0
    return [float(len(said[0]["content"]) % 2 == 0) for said in completions]
"""


def overlap(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "overlap.cli", *words], cwd=folder, capture_output=True, text=True, timeout=280,
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", "PYTHONPATH": str(ROOT), "HOME": str(folder)}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.promise("rewards-in")
def test_a_run_is_made_of_a_reward_of_trl_and_its_configuration_alone_plans_it_again(tmp_path: Path) -> None:
    policy = make_tiny_policy(tmp_path / "tiny")
    rows = [{"id": n, "prompt": [{"role": "user", "content": f"say {n}"}], "word": "say"} for n in range(12)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "mine.py").write_text(REWARD)
    settings = {
        "model.policy": policy, "model.dtype": "float32", "model.prompt_tokens": 64, "model.response_tokens": 12,
        "data.train": "rows.jsonl", "rollout.groups_per_step": 4, "rollout.samples_per_group": 4,
        "learn.micro_batch_tokens": 512, "learn.truncated": "zero", "run.steps": 1, "run.device": "cpu",
        "run.samples": "all", "run.eval_samples": 0, "run.dir": "first",
    }  # fmt: skip
    words = [f"{name}={value}" for name, value in settings.items()]
    overlap(tmp_path, "train", "--reward", "mine:even", *words)
    kept = yaml.safe_load((tmp_path / "first" / "config.yaml").read_text())
    assert kept["data"]["task"] == "overlap.rewards:RewardTask"
    samples = [row for row in read_json_lines(tmp_path / "first" / "trajectories.jsonl") if "reward" in row]
    assert {row["reward"] for row in samples} == {0.0, 1.0}
    assert all(row["reward"] == (len(row["answer"]) % 2 == 0) for row in samples)
    shutil.copy(tmp_path / "first" / "config.yaml", tmp_path / "again.yaml")
    plan = overlap(tmp_path, "train", "--config", "again.yaml", "run.dir=second", "--dry-run")
    assert "mine:even" in plan
