"""How many engines a run has, of which kind, and where they print."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from overlap.cluster import FarSite, RankSite
from overlap.config import ClusterConfig, Config, LearnConfig, RolloutConfig
from overlap.fakes import FakeGenerator
from overlap.placement import Devices, EngineSeat, NodeDevices, Placement, RankSeat, place, place_over
from overlap.run.parts import PartFactory, before_starts, bound_cores


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What each engine was made with."""
    asked = list[dict[str, Any]]()

    def engine(*_: Any, **how: Any) -> Any:
        asked.append(how)
        return SimpleNamespace()

    monkeypatch.setattr("overlap.generate.EngineClient", engine)
    return asked


def engines(count: int, folder: Path, *, trained: bool) -> Any:
    cfg = Config(rollout=RolloutConfig(replicas=count))
    prepared: Any = SimpleNamespace(cfg=cfg, policy=folder)
    placement, log = place(cfg, Devices(cores=(0, 1, 2))), folder / "run.log"
    factory = PartFactory(prepared, placement, folder, log)
    return factory.training_engines() if trained else factory.serving_engines()


@pytest.mark.parametrize("trained", [True, False])
def test_one_engine_prints_into_the_log_of_the_run(tmp_path: Path, made: list[dict[str, Any]], trained: bool) -> None:
    engines(1, tmp_path, trained=trained)
    assert [(how["engine"], how["log"]) for how in made] == [(0, tmp_path / "run.log")]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("trained", [True, False])
def test_each_of_several_engines_has_a_seat_and_a_log_of_its_own(
    tmp_path: Path, made: list[dict[str, Any]], trained: bool
) -> None:
    engines(3, tmp_path, trained=trained)
    folder = tmp_path / "engines"
    assert [(how["engine"], how["log"]) for how in made] == [(e, folder / f"{e}.log") for e in range(3)]
    assert [seat.environment["VLLM_CPU_OMP_THREADS_BIND"] for seat in made[0]["placement"].engines] == ["0", "1", "2"]
    assert [how.get("standalone", False) for how in made] == [not trained] * 3


@pytest.mark.parametrize("backend", ["ipc", "nccl"])
def test_several_engines_know_whether_they_take_turns(tmp_path: Path, made: list[dict[str, Any]], backend: str) -> None:
    cfg = Config(rollout=RolloutConfig(replicas=2, weight_backend=backend), learn=LearnConfig(ranks=2))  # type: ignore[arg-type]
    prepared: Any = SimpleNamespace(cfg=cfg, policy=tmp_path)
    placement, log = place(cfg, Devices.gpus(4)), tmp_path / "run.log"
    engines = PartFactory(prepared, placement, tmp_path, log).training_engines()
    assert engines._sleeps == (backend == "ipc")  # type: ignore[attr-defined]


def test_where_they_take_turns_the_engines_are_up_and_asleep_before_the_learner_begins():
    done = []

    class Engine(FakeGenerator):
        async def start(self):
            done.append("start")

        async def sleep(self):
            done.append("sleep")

    assert before_starts(Engine(), Placement()) == {}
    waits = before_starts(Engine(), Placement("cuda", "ipc"))
    assert list(waits) == ["learner"]
    asyncio.run(waits["learner"]())
    assert done == ["start", "sleep"]


def test_engines_on_nodes_live_there_and_the_others_on_this_machine(tmp_path: Path, made: list[dict[str, Any]]) -> None:
    pytest.importorskip("ray")
    cfg = Config(rollout=RolloutConfig(replicas=3), cluster=ClusterConfig("10.0.0.0:6379"))
    nodes = [NodeDevices(f"n{i}", f"10.0.0.{i}", Devices(cores=(0, 1)), here=i == 0) for i in range(3)]
    prepared: Any = SimpleNamespace(cfg=cfg, policy=tmp_path)
    placement, log = place_over(cfg, nodes), tmp_path / "run.log"
    PartFactory(prepared, placement, tmp_path, log).training_engines()
    first, second, third = [how["site"] for how in made]
    assert isinstance(first, FarSite)
    assert isinstance(second, FarSite)
    assert first is not second
    assert third is None


def test_ranks_on_nodes_have_one_site_for_all_learners_of_a_run_and_know_of_its_engines(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    cluster = ClusterConfig("10.0.0.0:6379")
    cfg = Config(rollout=RolloutConfig(replicas=2), cluster=cluster, learn=LearnConfig(ranks=2))
    nodes = [NodeDevices(f"n{i}", f"10.0.0.{i}", Devices(cores=(0, 1)), here=i == 0) for i in range(3)]
    prepared: Any = SimpleNamespace(cfg=cfg, policy=tmp_path, critic=None)
    factory = PartFactory(prepared, place_over(cfg, nodes), tmp_path, tmp_path / "run.log")
    ranks, engine = factory.rank_site(), factory.engine_site(0)
    assert isinstance(ranks, RankSite)
    assert isinstance(engine, FarSite)
    assert ranks._berths is engine._berths
    factory.placement = place(replace(cfg, rollout=RolloutConfig()), nodes[0].devices)
    assert (factory.rank_site(), factory.engine_site(0)) == (None, None)


def test_engines_that_serve_come_up_again_where_they_are_on_nodes(tmp_path: Path, made: list[dict[str, Any]]) -> None:
    pytest.importorskip("ray")
    cfg = Config(rollout=RolloutConfig(replicas=2), cluster=ClusterConfig("10.0.0.0:6379"))
    nodes = [NodeDevices(f"n{i}", f"10.0.0.{i}", Devices(cores=(0, 1)), here=i == 0) for i in range(3)]
    prepared: Any = SimpleNamespace(cfg=cfg, policy=tmp_path)
    far, here = place_over(cfg, nodes, learner=False), place(cfg, Devices(cores=(0, 1)), learner=False)
    for placement, again in ((far, True), (here, False)):
        engines: Any = PartFactory(prepared, placement, tmp_path, tmp_path / "run.log").serving_engines()
        assert [slot._policy is not None for slot in engines._slots] == [again] * 2
    assert [how["standalone"] for how in made] == [True] * 4


def test_the_cores_of_all_workers_of_the_engines_on_a_node_are_bound() -> None:
    seats = (EngineSeat(0, 0, cores=((0,),)), EngineSeat(1, 0, cores=((0, 1), (2, 3)), node="n1"))
    placement = Placement(engines=seats)
    assert [bound_cores(placement, node) for node in ("n1", "n2")] == [4, 0]


def test_a_learner_rank_on_a_node_has_a_core_of_it() -> None:
    placement = Placement(ranks=(RankSeat(0, 0), RankSeat(1, 0, node="n1"), RankSeat(2, 0, node="n1")))
    assert [bound_cores(placement, node) for node in ("n1", "n2")] == [2, 0]
