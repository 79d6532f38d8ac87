"""Real engines on machines of a real Ray cluster: they train a policy, lose a machine meanwhile, get another one."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from commands import Command, commands, left
from machines import Machines, wait_until, why_not
from places import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1500), pytest.mark.skipif(bool(why_not()), reason=why_not())]
CLEAN_S, STEP_S = 15.0, 600.0
ENGINE = "overlap.generate.host"
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


@pytest.mark.wide
def test_a_run_goes_on_when_the_node_of_an_engine_dies_and_the_engine_moves_to_one_that_joins(
    machines, train, tmp_path
) -> None:
    steps, lost, stays = 8, machines.all[1], machines.all[2]
    run = train("rollout.replicas=2", f"run.steps={steps}", f"run.dir={tmp_path / 'run'}")
    run.until(f"step 1/{steps}", STEP_S)
    assert [len(machine.find(ENGINE)) for machine in machines.all] == [0, 1, 1]
    lost.kill()
    run.until(f"waits for node {lost.address}-")
    assert f"the engine-0 on node {lost.address}-" in run.text
    run.until(f"step 2/{steps}", STEP_S)
    joined = machines.add()
    run.until(f"to node {joined.address}-")
    assert run.end(600.0) == 0, run.text
    rows = [json.loads(line) for line in (tmp_path / "run" / "rollouts.jsonl").read_text().splitlines()[1:]]
    ids = [(row["step"], row["group"], row["sample"]) for row in rows]
    assert len(ids) == len(set(ids)) == steps * 8
    assert all(row["reward"] is not None for row in rows)
    assert all(row["judgement"]["node"] for row in rows if row["judgement"])
    assert re.search(rf"node {lost.address}-\w+ is lost", run.text)  # it judged programs, too
    figures = [json.loads(line) for line in (tmp_path / "run" / "nodes.jsonl").read_text().splitlines()]
    assert [line["step"] for line in figures] == list(range(1, steps + 1))
    assert sum(node["judged"] for line in figures for node in line["worst"]) > 0
    metrics = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert max(row.get("rollout/parity_gap") or 0.0 for row in metrics) < 0.05
    wait_until(lambda: not any(left(machine, ENGINE) for machine in (stays, joined)), CLEAN_S)
