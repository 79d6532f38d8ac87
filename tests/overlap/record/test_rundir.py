"""The run directory: claimed once, written whole, and every failed write is one clear line."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from places import ROOT

from overlap.config import Config
from overlap.core import Batch, Group, Prompt, Request, Scored, Trajectory, Used, VersionSpan
from overlap.errors import ConfigError
from overlap.record.json_lines import read_json_lines
from overlap.record.rundir import RunDir

CFG = Config().to_dict()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunDir]:
    made = RunDir.create(str(tmp_path / "run"), CFG, share=1.0)
    yield made
    made.close()


def batch(step: int = 1, groups: int = 2, size: int = 4, node: str = "") -> Batch:
    cases = (SimpleNamespace(index=0, verdict="WA", cpu_s=0.1, message="differs at token 3"),)
    judgement: Any = SimpleNamespace(verdict="WA", cases=cases, node=node)

    def sample(group: int, k: int, prompt: Prompt) -> Scored:
        trajectory = Trajectory(
            Request(group, k, prompt), (5, 6), (-1.0, -2.0), "return 1", "stop", (VersionSpan(2, 0, 2),), 1.0, 3.0
        )
        return Scored(trajectory, 0.0, judgement, "", 3.0, 3.5, 4.0)

    def one(number: int) -> Group:
        prompt = Prompt(f"p{number}", (1, 2), prefill="```python\n")
        samples = tuple(sample(number, k, prompt) for k in range(size))
        return Group(number, prompt, samples, (0.0,) * size, "equal rewards" if number % 2 else "")

    made = [one(k) for k in range(groups)]
    return Batch(step, 0, tuple(g for g in made if not g.dropped), tuple(g for g in made if g.dropped))


def test_a_new_run_holds_the_resolved_config_as_plain_yaml(run):
    stored = yaml.safe_load(run.config.read_text())
    assert stored["rollout"]["stop"] == []
    assert stored["learn"]["lr"] == 1e-6
    assert list(stored) == [
        "model",
        "data",
        "rollout",
        "episode",
        "verify",
        "learn",
        "critic",
        "run",
        "cluster",
        "history",
    ]
    assert [(entry["step"], entry["changes"]) for entry in stored["history"]] == [(0, {})]


def test_a_sampled_trajectory_tells_the_whole_story(run):
    run.sample(batch(), decode=lambda prompt: f"asked {prompt.id}")
    rows = read_json_lines(run.trajectories)
    assert len(rows) == 8
    assert rows[0] == {
        "step": 1, "id": "g0s0", "prompt_id": "p0", "prompt": "asked p0", "answer": "```python\nreturn 1",
        "reward": 0.0, "failure": "", "dropped": "", "verdict": "WA",
        "tests": [{"index": 0, "verdict": "WA", "cpu_s": 0.1, "message": "differs at token 3"}],
        "tokens": 2, "finish": "stop", "versions": [[2, 0, 2]], "generate_s": 2.0, "verify_s": 0.5,
    }  # fmt: skip
    assert rows[-1]["dropped"] == "equal rewards"


def test_a_sampled_episode_tells_its_dialog_as_the_policy_saw_it(run):
    (group, *groups), used = batch().groups, Used(3, 9, 30, 0, 0, 0)

    def episode(scored):
        branch = replace(scored.trajectory, prompt_ids=(4, 5), token_ids=(6, 7, 8), logprobs=(0.0,) * 3, used=used)
        return replace(scored, trajectory=branch)

    group = replace(group, samples=tuple(map(episode, group.samples)))
    run.sample(replace(batch(), groups=(group, *groups)), decode=lambda prompt: "-".join(map(str, prompt.token_ids)))
    rows = read_json_lines(run.trajectories)
    assert {row["dialog"] for row in rows if row["id"].startswith(f"g{group.id}s")} == {"4-5-6-7-8"}
    assert not any("dialog" in row for row in rows if not row["id"].startswith(f"g{group.id}s"))


def test_a_sampled_trajectory_tells_which_node_judged_it(run):
    run.sample(batch(node="10.0.0.2-9c41d0aa"))
    assert {row["node"] for row in read_json_lines(run.trajectories)} == {"10.0.0.2-9c41d0aa"}


@pytest.mark.parametrize(("share", "expected"), [(0.0, 0), (0.01, 1), (0.25, 10), (1.0, 40)])
def test_the_share_of_trajectories_is_selectable(tmp_path, share, expected):
    made = RunDir.create(str(tmp_path / "run"), CFG, share=share)
    made.sample(batch(groups=10))
    made.close()
    assert len(read_json_lines(made.trajectories)) == expected


def test_a_share_that_is_none_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"share=1\.5"):
        RunDir.create(str(tmp_path / "run"), CFG, share=1.5)


def test_the_same_seed_samples_the_same_trajectories(tmp_path):
    picked = []
    for name in ("a", "b"):
        made = RunDir.create(str(tmp_path / name), CFG, share=0.2)
        for step in (1, 2):
            made.sample(batch(step, groups=10))
        made.close()
        picked.append([(row["step"], row["id"]) for row in read_json_lines(made.trajectories)])
    assert picked[0] == picked[1]
    assert {i for s, i in picked[0] if s == 1} != {i for s, i in picked[0] if s == 2}


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(place)]
    try:
        mounted = subprocess.run(command, capture_output=True, timeout=20, check=False).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("a file system can only be mounted by root")
    yield place
    subprocess.run(["umount", "-l", str(place)], timeout=20, check=True)


def test_a_disk_that_fills_up_costs_files_and_no_step(tiny_disk):
    made = RunDir.create(str(tiny_disk / "run"), CFG, share=1.0)
    said: list[str] = []
    made.failures.report_to(said.append)
    for step in range(300):
        made.step({"step": step, "reward/mean": 0.5})
        made.sample(batch(step))
    made.finish({"padding": "x" * 65536})
    made.close()
    assert not made.summary.exists()
    for path in (made.metrics, made.trajectories):
        assert path.read_bytes().endswith(b"\n")
        assert read_json_lines(path)
    lost = {line.split(" ")[0] for line in made.failures}
    assert {"trajectories.jsonl", "summary.json"} <= lost
    assert len(said) == len({line.split(" ")[0] for line in said}), "a file is named once"


@pytest.mark.parametrize(
    ("call", "number"), [("open", errno.EROFS), ("write", errno.ENOSPC), ("write", errno.EDQUOT), ("close", errno.EIO)]
)
def test_no_failed_write_of_a_file_ends_a_run(tmp_path, monkeypatch, call, number):
    """Whatever fails (the name, the contents, the end) and whyever: the run goes on, and says what is missing."""
    made = RunDir.create(str(tmp_path / "run"), CFG, share=1.0)
    real = getattr(os, call)
    told: list[str] = []
    made.failures.report_to(told.append)

    def failing(first: Any, *args: Any, **kwargs: Any) -> Any:
        named = first if call == "open" else os.readlink(f"/proc/self/fd/{first}")
        if str(made.path) in str(named) and not str(named).endswith("run.log"):
            if call == "close":
                real(first)
            raise OSError(number, os.strerror(number))
        return real(first, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing)
        for step in (1, 2):
            made.step({"step": step, "reward/mean": 0.5})
            made.sample(batch(step))
        made.close()
    lost = {line.split(" ")[0]: line for line in made.failures}
    assert lost.keys() == {"metrics.jsonl", "trajectories.jsonl", "events"}
    assert all(os.strerror(number) in line for line in lost.values())
    assert len(told) == 3


def test_nothing_here_imports_a_gpu_library():
    code = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]: importlib.import_module('overlap.record.' + name)\n"
        "heavy = {'torch', 'vllm', 'ray', 'deepspeed', 'tensorboard', 'matplotlib', 'numpy'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    names = [path.stem for path in (ROOT / "overlap" / "record").glob("*.py")]
    subprocess.run([sys.executable, "-c", code, *names], cwd=ROOT, timeout=60, check=True)
