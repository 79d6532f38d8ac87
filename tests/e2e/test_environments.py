"""A step on the real engine and the real learner, of each kind of environment and of an agent in a jail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from environment_runs import interpreter
from places import SUPPORT

from overlap.record.metrics import read_steps

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900), pytest.mark.wide]

HARBOR = "recipes.environments.harbor:HarborTask"
VERIFIERS = "recipes.environments.verifiers:VerifiersTask"
TASKSET = """
import zlib
import verifiers.v1 as vf

class Half(vf.Task[vf.TaskData]):
    @vf.reward
    async def half(self, trace: vf.Trace) -> float:
        return float(zlib.crc32(trace.last_reply.encode()) % 2)

class Halves(vf.Taskset[Half, vf.TasksetConfig]):
    def load(self):
        return [Half(vf.TaskData(idx=n, prompt=f"Say {n}."), self.config.task) for n in range(4)]

__all__ = ["Halves"]
"""


def trained(folder: Path, policy: Path, task: str, **more: Any) -> dict[str, Any]:
    """The row of a run's only step."""
    config = {
        "model": {"policy": str(policy), "dtype": "float32", "prompt_tokens": 600, "response_tokens": 12},
        "rollout": {"groups_per_step": 2, "samples_per_group": 4, "max_sequences": 8},
        "learn": {"lr": 3e-3, "micro_batch_tokens": 2048},
        "run": {"steps": 1, "dir": str(folder / "out"), "device": "cpu", "eval_samples": 0, "eval_every": 0},
        "data": {"task": task, "options": more.pop("options", {})},
        "episode": {"tokens": 400, "turns": 3, **more},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "overlap.cli", "train", "--config", str(folder / "config.yaml")]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=800)
    log = folder / "out" / "run.log"
    assert done.returncode == 0, done.stderr[-3000:] + (log.read_text()[-3000:] if log.exists() else "")
    (row,) = read_steps(folder / "out" / "metrics.jsonl")
    return row


def test_an_agent_in_a_jail_trains(tmp_path, tiny_policy: Path) -> None:
    (tmp_path / "toy_agent.py").write_text((SUPPORT / "toy_agent.py").read_text())
    agent = f"{sys.executable} -S {SUPPORT / 'tiny_agent.py'} ends && printf left > left.txt"
    row = trained(tmp_path, tiny_policy, "toy_agent:ToyAgentTask", command=agent, jail={})
    assert (row["reward/masked"], row["episode/turns_mean"]) == (0, 2)


def test_a_harbor_task_trains(tmp_path, tiny_policy: Path) -> None:
    for name in ("one", "two"):
        folder = tmp_path / "tasks" / name
        (folder / "tests").mkdir(parents=True)
        (folder / "instruction.md").write_text("Say anything.")
        (folder / "task.toml").write_text('version = "1.0"\n')
        (folder / "tests" / "test.sh").write_text("echo $((RANDOM % 2)) > /logs/verifier/reward.txt\n")
    row = trained(tmp_path, tiny_policy, HARBOR, options={"tasks": str(tmp_path / "tasks"), "system": "Work."})
    assert row["reward/masked"] == 0


def test_a_taskset_of_verifiers_trains(tmp_path, tiny_policy: Path) -> None:
    python = interpreter("verifiers")
    (tmp_path / "half_v1.py").write_text(TASKSET)
    row = trained(tmp_path, tiny_policy, VERIFIERS, options={"taskset": "half-v1", "python": python}, timeout_s=120)
    assert row["reward/masked"] == 0
