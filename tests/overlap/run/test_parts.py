"""How many engines a run has, of which kind, and where they print."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_parts import FakeGenerator

from overlap.cluster.sites import FarSite, RankSite
from overlap.config.fields import ClusterConfig, Config
from overlap.config.learn import LearnConfig
from overlap.config.rollout import RolloutConfig
from overlap.placement.devices import Devices, NodeDevices
from overlap.placement.node_seats import place_over
from overlap.placement.seats import EngineSeat, Placement, RankSeat, place
from overlap.run.parts import PartFactory, before_starts, bound_cores


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What each engine was made with."""
    asked = list[dict[str, Any]]()

    def engine(*_: Any, **how: Any) -> Any:
        asked.append(how)
        return SimpleNamespace()

    monkeypatch.setattr("overlap.generate.client.EngineClient", engine)
    return asked


def factory(folder: Path, cfg: Config, placement: Placement | None = None) -> Any:
    prepared: Any = SimpleNamespace(cfg=cfg, policy=folder, critic=None, reference=None)
    return PartFactory(prepared, placement or place(cfg, Devices(cores=(0, 1, 2))), folder, folder / "run.log")


CLUSTER = ClusterConfig("10.0.0.0:6379")
NODES = [NodeDevices(f"n{i}", f"10.0.0.{i}", Devices(cores=(0, 1)), here=i == 0) for i in range(3)]


@pytest.mark.parametrize("trained", [True, False])
def test_one_engine_prints_into_the_log_of_the_run_and_each_of_several_has_a_seat_and_a_log_of_its_own(
    tmp_path: Path, made: list[dict[str, Any]], trained: bool
) -> None:
    folder = tmp_path / "engines"
    for count, logs in ((1, [tmp_path / "run.log"]), (3, [folder / f"{engine}.log" for engine in range(3)])):
        assert not folder.exists()
        made.clear()
        parts = factory(tmp_path, Config(rollout=RolloutConfig(replicas=count)))
        parts.training_engines() if trained else parts.serving_engines()
        assert [(how["engine"], how["log"]) for how in made] == [*enumerate(logs)]
        assert [how["standalone"] for how in made] == [not trained] * count
    assert [seat.environment["VLLM_CPU_OMP_THREADS_BIND"] for seat in made[0]["placement"].engines] == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("gpus", "begins"),
    [(1, ["start", "sleep"]), (2, None), (0, None)],
)
async def test_engines_that_take_turns_with_a_learner_are_up_and_asleep_before_it_begins(
    gpus: int, begins: list[str] | None
):
    """vLLM takes for its own what others on a GPU take or free while it starts, or stops over it."""
    done = []

    class Engine(FakeGenerator):
        async def start(self):
            done.append("start")

        async def sleep(self):
            done.append("sleep")

    devices = Devices.gpus(gpus) if gpus else Devices()
    waits = before_starts(Engine(), place(Config(), devices))
    assert list(waits) == ([] if begins is None else ["learner"])
    for wait in waits.values():
        await wait()
    assert done == (begins or [])


def test_engines_on_nodes_live_there_and_the_others_on_this_machine(tmp_path: Path, made: list[dict[str, Any]]) -> None:
    pytest.importorskip("ray")
    cfg = Config(rollout=RolloutConfig(replicas=3), cluster=CLUSTER)
    factory(tmp_path, cfg, place_over(cfg, NODES)).training_engines()
    first, second, third = [how["site"] for how in made]
    assert isinstance(first, FarSite)
    assert isinstance(second, FarSite)
    assert first is not second
    assert third is None


def test_ranks_on_nodes_have_one_site_for_all_learners_of_a_run_and_know_of_its_engines(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    cfg = Config(rollout=RolloutConfig(replicas=2), cluster=CLUSTER, learn=LearnConfig(ranks=2))
    parts = factory(tmp_path, cfg, place_over(cfg, NODES))
    ranks, engine = parts.rank_site(), parts.engine_site(0)
    assert isinstance(ranks, RankSite)
    assert isinstance(engine, FarSite)
    assert ranks._fleet is engine._fleet
    parts.placement = place(replace(cfg, rollout=RolloutConfig()), NODES[0].devices)
    assert (parts.rank_site(), parts.engine_site(0)) == (None, None)


def test_all_workers_of_engines_and_a_learner_rank_on_a_node_have_a_core_of_it() -> None:
    seats = (EngineSeat(0, 0, cores=((0,),)), EngineSeat(1, 0, cores=((0, 1), (2, 3)), node="n1"))
    ranks = (RankSeat(0, 0), RankSeat(1, 0, node="n1"), RankSeat(2, 0, node="n1"))
    for placement, cores in ((Placement(engines=seats), 4), (Placement(ranks=ranks), 2)):
        assert [bound_cores(placement, node) for node in ("n1", "n2")] == [cores, 0]
