"""Real engines on machines of a real Ray cluster: they train a policy, lose a machine meanwhile, get another one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from commands import Command, commands
from machines import Machine, Machines, wait_until, why_not
from places import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1500), pytest.mark.skipif(bool(why_not()), reason=why_not())]
CLEAN_S, STEP_S = 15.0, 600.0


CONFIG = ROOT / "recipes" / "code_rl" / "configs" / "smoke.yaml"


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    with Machines(3) as made:
        yield made


@pytest.fixture
def train(machines: Machines) -> Iterator[Callable[..., Command]]:
    common = ["run.eval_samples=0", "model.dtype=float32", "run.keep_rollouts=true"]
    with commands(machines.head) as start:
        yield partial(
            start, "-m", "overlap.cli", "train", "--config", CONFIG, f"cluster.address={machines.address}", *common
        )


def engines(machine: Machine) -> dict[int, str]:
    return machine.find("overlap.generate.host")


def left(machine: Machine) -> dict[int, str]:
    return engines(machine) | machine.find("NodeActor") | machine.find("overlap.process import reaper")


def alive(machines: Machines) -> list[Machine]:
    return [machine for machine in machines.all if machine.lives]


def check_books(run: Path, steps: int) -> None:
    """Every sample was scored, once."""
    found = [json.loads(line) for line in (run / "rollouts.jsonl").read_text().splitlines()[1:]]
    ids = [(row["step"], row["group"], row["sample"]) for row in found]
    assert len(ids) == len(set(ids)) == steps * 8
    assert all(row["reward"] is not None for row in found)


@pytest.mark.wide
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
    run.until(f"step 1/{steps}", STEP_S)
    assert len(engines(lost)) == len(engines(stays)) == 1
    assert not engines(machines.head)
    lost.kill()
    assert run.end(600.0) == 0, run.text
    assert f"the engine-0 on node {lost.address}-" in run.text
    check_books(tmp_path / "run", steps)
    metrics = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert max(row.get("rollout/parity_gap") or 0.0 for row in metrics) < 0.05
    wait_until(lambda: not left(stays), CLEAN_S)


@pytest.mark.wide
def test_an_engine_moves_to_a_node_that_joins_and_serves_the_version_of_the_others(machines, train, tmp_path) -> None:
    steps, lost = 6, machines.add()
    run = train(f"rollout.replicas={len(alive(machines)) - 1}", f"run.steps={steps}", f"run.dir={tmp_path / 'run'}")
    run.until(f"step 1/{steps}", STEP_S)
    lost.kill()
    run.until(f"waits for node {lost.address}-")
    joined = machines.add()
    run.until(f"to node {joined.address}-")
    assert run.end(600.0) == 0, run.text
    check_books(tmp_path / "run", steps)


@pytest.mark.wide
def test_a_driver_that_is_killed_leaves_no_engine_on_any_node(machines, train, tmp_path) -> None:
    run = train("rollout.replicas=2", "run.steps=50", f"run.dir={tmp_path / 'run'}")
    run.until("step 1/50", STEP_S)
    run.kill()
    wait_until(lambda: not any(map(left, alive(machines))), CLEAN_S)  # the reapers go when the folders have gone
