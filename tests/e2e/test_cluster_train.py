"""Engines and learner ranks on machines of a real Ray cluster: they learn what they learn on one machine, lose a
machine meanwhile, get another one.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import Command, commands, left
from learners import PROBE, make_batch, run
from machines import Machines, wait_until, why_not
from places import ROOT, SUPPORT
from ranks_driver import CFG, digest
from tiny_policy import make_tiny_policy

from overlap.cluster.nodes import ORPHAN_S

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1500), pytest.mark.skipif(bool(why_not()), reason=why_not())]
CLEAN_S, LOST_S, STEP_S = 15.0, 90.0, 600.0
CONFIG = ROOT / "recipes" / "code_rl" / "configs" / "smoke.yaml"
ENGINE, RANK = "overlap.generate.host", "overlap.learner.rank"


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    with Machines(3) as made:
        yield made


@pytest.fixture
def start(machines: Machines) -> Iterator[Callable[..., Command]]:
    with commands(machines.head) as start:
        yield start


@pytest.fixture
def far(machines: Machines, start: Callable[..., Command], policy: Path) -> Callable[..., Command]:
    """A driver of ranks, which takes steps; its folder is one that no other machine sees."""
    return partial(start, SUPPORT / "ranks_driver.py", machines.address, policy, "/mnt/state")


@pytest.fixture(scope="module")
def shared() -> Iterator[Path]:
    """A folder that all machines see."""
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        yield Path(made)


@pytest.fixture(scope="module")
def policy(shared: Path) -> Path:
    return make_tiny_policy(shared / "tiny")


def clean(machines: Machines, seconds: float = CLEAN_S) -> None:
    """Wait until no machine has anything of a run."""
    wait_until(lambda: not any(left(machine, RANK) for machine in machines.all), seconds)


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.wide
@pytest.mark.parametrize(("replicas", "lora"), [(1, ()), (2, ()), (2, ("learn.lora_rank=4",))])
def test_a_run_goes_on_when_a_node_that_judges_dies_and_an_engine_whose_node_dies_moves_to_one_that_joins(
    machines, start, tmp_path, replicas: int, lora: tuple[str, ...]
) -> None:
    """One engine is on the driver's machine, and the others judge; of two each has a node."""
    steps, lost, stays, folder = 2 if replicas == 1 else 8, machines.all[1], machines.all[2], tmp_path / "run"
    words = [
        "-m",
        "overlap.cli",
        "train",
        "--config",
        CONFIG,
        f"cluster.address={machines.address}",
        f"run.dir={folder}",
    ]
    words += ["run.eval_samples=0", "model.dtype=float32", "run.samples=all", f"run.steps={steps}"]
    run = start(*words, f"rollout.replicas={replicas}", *lora)
    run.until(f"step 1/{steps}", STEP_S)
    assert [len(machine.find(ENGINE)) for machine in machines.all] == ([0, 1, 1] if replicas == 2 else [1, 0, 0])
    lost.kill()
    if replicas == 2:
        run.until(f"waits for node {lost.address}-")
        assert f"the engine-0 on node {lost.address}-" in run.text
        run.until(f"step 2/{steps}", STEP_S)
    joined = machines.add()
    assert run.end(600.0) == 0, run.text
    assert f"node {lost.address}-" in run.text
    assert (f"to node {joined.address}-" in run.text) is (replicas == 2)
    rows = [row for row in lines(folder / "trajectories.jsonl") if row["split"] == "train"]
    ids = [(row["step"], row["group"], row["sample"]) for row in rows]
    assert len(ids) == len(set(ids)) == steps * 8
    assert all(row["reward"] is not None for row in rows)
    assert all(row["node"] for row in rows if row["verdict"])
    assert [row["step"] for row in lines(folder / "nodes.jsonl")] == list(range(1, steps + 1))
    assert sum(node["judged"] for row in lines(folder / "nodes.jsonl") for node in row["worst"]) > 0
    assert max(row.get("rollout/parity_gap") or 0.0 for row in lines(folder / "metrics.jsonl")) < 0.05
    wait_until(lambda: not any(left(machine, ENGINE) for machine in (stays, joined)), CLEAN_S)


@pytest.mark.wide
def test_ranks_on_two_nodes_learn_what_two_on_one_machine_learn_and_their_checkpoint_is_gone_on_with_there(
    machines, far, policy, tmp_path
) -> None:
    ran = far("step", "save", "step", "restore", "step")
    assert ran.end() == 0, ran.text
    assert not ran.find("failed"), ran.text
    (placed,) = ran.find("placed")
    first, second = (machine.address for machine in machines.all[1:])
    assert f"rendezvous at {first}" in placed["lines"]["ranks"] or f"rendezvous at {second}" in placed["lines"]["ranks"]
    assert "this machine" not in placed["lines"]["ranks"]

    async def use(learner):
        async def step() -> dict[str, Any]:
            report = await learner.step(make_batch(learner._version))
            update = await learner.publish(report.version)
            return {"probe": await learner.logprobs(PROBE), "weights": digest(update.info), **report.metrics}

        here = [await step(), await step()]
        await learner.restore(Path(f"/proc/{machines.head.init}/root/mnt/state"))
        return [*here, await step()]

    here = run(policy, tmp_path, CFG, use)
    there = ran.find("step")
    assert len(here) == len(there) == 3
    for mine, theirs in zip(here, there, strict=True):
        assert theirs["probe"] == pytest.approx(mine["probe"], abs=1e-4)
        for name in ("loss", "grad_norm"):
            assert theirs[name] == pytest.approx(mine[name], rel=1e-4, abs=1e-5), name
    assert there[1]["weights"] == there[2]["weights"]
    assert len({event["weights"] for event in there}) == 2
    clean(machines)


def train(machines: Machines, shared: Path, policy: Path, *settings: str) -> list[str]:
    """The command of a run of a tiny policy, with ranks on nodes."""
    tree = {
        "model": {"policy": str(policy), "dtype": "float32", "prompt_tokens": 64, "response_tokens": 64},
        "data": {"task": "toy:ToyTask"},
        "rollout": {"groups_per_step": 4, "samples_per_group": 6, "max_sequences": 24},
        "learn": {"lr": 1e-4, "micro_batch_tokens": 512, "truncated": "zero", "ranks": 2},
        "run": {"eval_samples": 0, "device": "cpu", "save_every": 1},
        "cluster": {"address": machines.address},
    }
    (shared / "config.yaml").write_text(yaml.safe_dump(tree))
    return ["-m", "overlap.cli", "train", "--config", str(shared / "config.yaml"), *settings]


@pytest.mark.wide
def test_a_run_whose_rank_lost_its_node_goes_on_from_its_checkpoint_on_the_nodes_that_live(
    machines, start, shared, policy
) -> None:
    lost, folder = machines.all[1], shared / "run"
    run = start(*train(machines, shared, policy, "run.steps=6", f"run.dir={folder}"))
    run.until("step 1/6", 400.0)
    assert len(lost.find(RANK)) == 1
    wait_until(lambda: any(folder.glob("checkpoints/step-*/COMPLETE")), 60.0)
    lost.kill()
    assert run.end() == 0, run.text
    text = " ".join(run.text.split())
    assert "the run goes back to checkpoint" in text
    assert lost.address in text[: text.index("the run goes back")]  # by its node, or by a rank that spoke with it
    assert f"moves from node {lost.address}-" in text
    metrics = lines(folder / "metrics.jsonl")
    assert [row["step"] for row in metrics] == list(range(1, 7))
    assert max(row.get("rollout/parity_gap") or 0.0 for row in metrics) < 0.05
    clean(machines)
    shutil.rmtree(folder)


@pytest.mark.wide
def test_a_run_that_loses_its_head_ends_in_time_says_so_and_leaves_nothing(machines, start, shared, policy) -> None:
    """The last one of this file: its cluster is no more."""
    folder = shared / "run"
    run = start(*train(machines, shared, policy, "run.steps=1000", f"run.dir={folder}"))
    run.until("step 1/1000", 400.0)
    for pid in machines.head.find("gcs_server "):
        os.kill(pid, signal.SIGKILL)
    assert run.end(LOST_S) == 1, run.text
    assert "the cluster is lost" in run.text or "does not answer" in run.text
    assert "The program will terminate" not in run.text  # so says Ray where it ends a process itself
    clean(machines, ORPHAN_S + CLEAN_S)
    assert any(folder.glob("checkpoints/step-*/COMPLETE"))
