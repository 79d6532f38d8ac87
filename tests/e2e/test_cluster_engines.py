"""Real engines on machines of a real Ray cluster: they train a policy, lose a machine meanwhile, get another one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from machines import Machine, Machines, wait_until, why_not
from places import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1500), pytest.mark.skipif(bool(why_not()), reason=why_not())]
CLEAN_S = 15.0


class Train:
    """``overlap train`` on the head, and what it prints."""

    def __init__(self, machines: Machines, *settings: str) -> None:
        config = ROOT / "recipes" / "code_rl" / "configs" / "smoke.yaml"
        command = [sys.executable, "-m", "overlap.cli", "train", "--config", str(config), "run.eval_samples=0"]
        command += ["model.dtype=float32", f"cluster.address={machines.address}", "run.keep_rollouts=true", *settings]
        self.machine = machines.head
        self.process: subprocess.Popen[str] = machines.head.start(command, PYTHONPATH=str(ROOT))
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)

    @property
    def text(self) -> str:
        return "".join(self.lines)

    def until(self, words: str, seconds: float = 600.0) -> None:
        try:
            wait_until(lambda: words in self.text or self.process.poll() is not None, seconds)
            assert words in self.text
        except AssertionError:
            raise AssertionError(f"never {words!r}\n{self.text[-4000:]}") from None

    def end(self) -> int:
        try:
            self.process.wait(200.0)
        finally:
            self.close()
        return int(self.process.returncode)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(10)
        self._reader.join(10)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    with Machines(3) as made:
        yield made


@pytest.fixture
def train(machines: Machines) -> Iterator[Callable[..., Train]]:
    made: list[Train] = []

    def start(*settings: str) -> Train:
        made.append(Train(machines, *settings))
        return made[-1]

    yield start
    for each in made:
        each.process.kill()


def engines(machine: Machine) -> dict[int, str]:
    return machine.find("overlap.generate.host")


def rows(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "rollouts.jsonl").read_text().splitlines()[1:]]


def check_books(run: Path, steps: int) -> None:
    """Every sample was scored, once."""
    found = rows(run)
    ids = [(row["step"], row["group"], row["sample"]) for row in found]
    assert len(ids) == len(set(ids)) == steps * 8
    assert all(row["reward"] is not None for row in found)


def test_a_plan_says_which_engine_sits_on_which_node(machines, train, tmp_path) -> None:
    dry = train("--dry-run", "rollout.replicas=2", f"run.dir={tmp_path / 'run'}")
    assert dry.end() == 0, dry.text
    first, second = (machine.address for machine in machines.all[1:])
    for line in (f"engine 0 on node {first}-", f"engine 1 on node {second}-", f"{machines.head.address}-"):
        assert line in dry.text
    few = train("--dry-run", "rollout.replicas=4", f"run.dir={tmp_path / 'run'}")
    assert few.end() == 2
    assert "rollout.replicas=4: on CPUs each engine has a node of 1 core(s) or more, and there are 3" in few.text


@pytest.mark.wide
def test_engines_on_nodes_train_and_a_run_goes_on_when_the_node_of_one_dies(machines, train, tmp_path) -> None:
    steps, lost, stays = 3, machines.all[1], machines.all[2]
    run = train("rollout.replicas=2", f"run.steps={steps}", f"run.dir={tmp_path / 'run'}")
    run.until(f"step 1/{steps}")
    assert len(engines(lost)) == len(engines(stays)) == 1
    assert not engines(machines.head)
    lost.kill()
    assert run.end() == 0, run.text
    assert f"the engine-0 on node {lost.address}-" in run.text
    check_books(tmp_path / "run", steps)
    metrics = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert max(row.get("rollout/parity_gap") or 0.0 for row in metrics) < 0.05
    wait_until(lambda: not engines(stays) and not stays.find("RayHosted"), CLEAN_S)


@pytest.mark.wide
def test_an_engine_moves_to_a_node_that_joins_and_serves_the_version_of_the_others(machines, train, tmp_path) -> None:
    steps, lost = 6, machines.add()
    alive = [machine for machine in machines.all if os.path.exists(f"/proc/{machine.init}")]
    run = train(f"rollout.replicas={len(alive) - 1}", f"run.steps={steps}", f"run.dir={tmp_path / 'run'}")
    run.until(f"step 1/{steps}")
    lost.kill()
    run.until(f"waits for node {lost.address}-")
    joined = machines.add()
    run.until(f"to node {joined.address}-")
    assert run.end() == 0, run.text
    check_books(tmp_path / "run", steps)


@pytest.mark.wide
def test_a_driver_that_is_killed_leaves_no_engine_on_any_node(machines, train, tmp_path) -> None:
    alive = [machine for machine in machines.all if os.path.exists(f"/proc/{machine.init}")]
    run = train("rollout.replicas=2", "run.steps=50", f"run.dir={tmp_path / 'run'}")
    run.until("step 1/50")
    for pid in machines.head.find("overlap.cli"):
        os.kill(pid, 9)
    run.close()
    wait_until(lambda: not any(engines(m) or m.find("RayHosted") for m in alive), CLEAN_S)
