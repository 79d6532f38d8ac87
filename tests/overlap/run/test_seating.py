"""Who sits where in a run: on one machine as ever, over nodes where there is a cluster."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
from hardware import GIB, cpus
from shapes import SMALL

from overlap.config.fields import ClusterConfig, Config, ModelConfig, RunConfig
from overlap.config.learn import LearnConfig
from overlap.config.rollout import RolloutConfig
from overlap.core.errors import ConfigError
from overlap.placement.devices import Devices, NodeDevices
from overlap.placement.fit import sequences_at_once
from overlap.placement.node_seats import seats_over
from overlap.placement.planned_run import PlannedRun
from overlap.placement.seats import place_here
from overlap.run import seating as spread
from overlap.run.seating import seat

CFG = Config(run=RunConfig(device="cpu"), rollout=RolloutConfig(replicas=2))
FAR = replace(CFG, cluster=ClusterConfig("10.0.0.0:6379"))


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> list[NodeDevices]:
    made = cpus(4, 4, 4, host=64 * GIB)

    def surveyed(cfg: Config, tell: object) -> list[NodeDevices]:
        tell("node n3 is not used: another version")  # type: ignore[operator]
        return made

    monkeypatch.setattr(spread, "_surveyed", surveyed)
    return made


def test_without_a_cluster_all_is_on_this_machine_and_ray_is_not_imported() -> None:
    code = (
        "import sys; from overlap.config.fields import Config, RunConfig; from overlap.run.seating import seat\n"
        "seated = seat(Config(run=RunConfig(device='cpu')))\n"
        "import overlap.run.parts, overlap.run.training, overlap.commands.answering\n"
        "print(seated.lines(), seated.placement.nodes, 'ray' in sys.modules, 'overlap.cluster' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.stderr) == ("[] () False False", "")


def test_with_one_the_nodes_are_asked_and_the_plan_says_who_sits_where(nodes: list[NodeDevices]) -> None:
    seated = seat(FAR)
    assert seated.placement.nodes == ("n1", "n2")
    assert dict(seated.lines()) == {
        "nodes": "n0 (this machine) 4 cores; n1 4 cores; n2 4 cores",
        "left out": "node n3 is not used: another version",
        "engines": "engine 0 on node n1 (3 cores); engine 1 on node n2 (3 cores); weight transfer by shared memory",
    }
    assert seated.seats.engines == ()
    assert "weights" not in dict(seat(FAR, learner=False).lines())["engines"]


def test_a_run_from_kept_samples_asks_no_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spread, "_surveyed", None)
    assert seat(FAR, engine=False).placement == place_here(FAR, engine=False)


def test_a_run_from_kept_samples_whose_ranks_are_to_be_spread_asks_them(nodes: list[NodeDevices]) -> None:
    cfg = replace(FAR, learn=LearnConfig(ranks=2))
    seated = seat(cfg, engine=False)
    assert (seated.placement.engines, seated.placement.rank_nodes) == ((), ("n1", "n2"))
    assert dict(seated.lines())["ranks"].startswith("rank 0 on node n1 (CPU); rank 1 on node n2 (CPU)")
    assert "engines" not in dict(seated.lines())
    nodes[2] = replace(nodes[2], host=GIB // 8)
    with pytest.raises(ConfigError, match="node n2: the run does not fit"):
        seat(cfg, engine=False).check(PlannedRun(cfg, SMALL, engine=False))


def test_the_memory_of_every_machine_is_checked(nodes: list[NodeDevices]) -> None:
    asked, seated = PlannedRun(FAR, SMALL), seat(FAR)
    assert all("KV cache" not in need.items for need in seated.check(asked))
    nodes[2] = replace(nodes[2], host=GIB)
    with pytest.raises(ConfigError, match="node n2: the run does not fit"):
        seat(FAR).check(asked)
    nodes[2], nodes[0] = replace(nodes[2], host=64 * GIB), replace(nodes[0], host=GIB)
    with pytest.raises(ConfigError, match=": the run does not fit"):
        seat(FAR).check(asked)


def test_engines_on_all_nodes_decode_as_many_sequences_as_the_smallest_gpu_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = (80, 40, 60)
    made = [NodeDevices(f"n{i}", f"10.0.0.{i}", Devices.gpus(2, g * GIB), here=i == 0) for i, g in enumerate(sizes)]
    monkeypatch.setattr(spread, "_surveyed", lambda cfg, tell: made)
    cfg = Config(
        cluster=FAR.cluster,
        model=ModelConfig(prompt_tokens=2048, response_tokens=28000),
        learn=LearnConfig(micro_batch_tokens=30048),
    )
    asked, seated = PlannedRun(cfg, SMALL), seat(cfg)
    assert [len(seated.placement.on(name)) for name in ("", "n1", "n2")] == [1, 2, 2]
    found = seated.counted(asked)
    assert found.sequences == sequences_at_once(asked, seats_over(seated.placement, made[1])) < 300
    assert found.counted(cfg).rollout.sequences == 5 * found.sequences
