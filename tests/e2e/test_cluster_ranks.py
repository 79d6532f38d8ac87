"""Learner ranks on machines of a real Ray cluster: they learn what ranks on one machine learn, and lose a machine."""

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
from places import SUPPORT
from ranks_driver import CFG, digest

from overlap.cluster.nodes import ORPHAN_S
from overlap.policy import make_tiny_policy

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900), pytest.mark.skipif(bool(why_not()), reason=why_not())]
CLEAN_S, LOST_S = 15.0, 90.0
RANK, APART = "overlap.learner.rank", "/mnt/state"
"""A folder of the head's own; what is below /tmp all machines share."""


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
    """A driver of ranks, which takes steps."""
    return partial(start, SUPPORT / "ranks_driver.py", machines.address, policy, APART)


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


@pytest.mark.wide
def test_ranks_on_two_nodes_learn_what_two_on_one_machine_learn_and_their_checkpoint_is_gone_on_with_there(
    machines, far, policy, tmp_path
) -> None:
    ran = far("step", "save", "step", "restore", "step")
    assert ran.end() == 0, ran.text
    assert not ran.find("failed"), ran.text
    (placed,) = ran.find("placed")
    first, second = (machine.address for machine in machines.all[1:])
    assert f"they meet at {first}" in placed["lines"]["ranks"] or f"they meet at {second}" in placed["lines"]["ranks"]
    assert "this machine" not in placed["lines"]["ranks"]

    async def use(learner):
        async def step() -> dict[str, Any]:
            report = await learner.step(make_batch(learner._version))
            update = await learner.publish(report.version)
            return {"probe": await learner.logprobs(PROBE), "weights": digest(update.info), **report.metrics}

        here = [await step(), await step()]
        await learner.restore(Path(f"/proc/{machines.head.init}/root{APART}"))
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
def test_a_plan_says_which_engine_and_which_rank_sits_on_which_node_and_where_ranks_meet(
    machines, start, shared, policy
) -> None:
    plan = train(machines, shared, policy, "--dry-run", f"run.dir={shared / 'dry'}")
    addresses = [machine.address for machine in machines.all[1:]]
    rows = {1: ["rank 0 on node", "rank 1 on node", "they meet at"], 2: ["engine 0 on node", "engine 1 on node"]}
    for replicas, found in rows.items():
        dry = start(*plan, f"rollout.replicas={replicas}")
        assert dry.end() == 0, dry.text
        assert all(any(f"{what} {address}" in dry.text for address in addresses) for what in found), dry.text
    few = start(*plan, "rollout.replicas=4")
    assert few.end() == 2
    assert "rollout.replicas=4: on CPUs each engine has a node of 1 core(s) or more, and there are 3" in few.text


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
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
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
