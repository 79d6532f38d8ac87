"""How many engines a run has, of which kind, and where they print."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from overlap.config import Config, RolloutConfig
from overlap.fakes import FakeGenerator
from overlap.generate import Replicas
from overlap.parts import before_starts, serving_engines, steady_engines
from overlap.placement import Devices, Placement, place


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What each engine was made with."""
    asked = list[dict[str, Any]]()

    def engine(*_: Any, **how: Any) -> Any:
        asked.append(how)
        return SimpleNamespace()

    monkeypatch.setattr("overlap.generate.VllmGenerator", engine)
    return asked


def engines(count: int, folder: Path, *, trained: bool) -> Any:
    cfg = Config(rollout=RolloutConfig(replicas=count))
    prepared: Any = SimpleNamespace(cfg=cfg, policy=folder)
    placement, log = place(cfg, Devices(cores=(0, 1, 2))), folder / "run.log"
    if not trained:
        return serving_engines(prepared, placement, folder, log=log)
    return steady_engines(prepared, placement, folder, log=log, tell=print, watch=print, went_on=print)


@pytest.mark.parametrize("trained", [True, False])
def test_one_engine_prints_into_the_log_of_the_run(tmp_path: Path, made: list[dict[str, Any]], trained: bool) -> None:
    assert not isinstance(engines(1, tmp_path, trained=trained), Replicas)
    assert [(how["engine"], how["log"]) for how in made] == [(0, tmp_path / "run.log")]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("trained", [True, False])
def test_each_of_several_engines_has_a_seat_and_a_log_of_its_own(
    tmp_path: Path, made: list[dict[str, Any]], trained: bool
) -> None:
    assert isinstance(engines(3, tmp_path, trained=trained), Replicas)
    folder = tmp_path / "engines"
    assert [(how["engine"], how["log"]) for how in made] == [(e, folder / f"{e}.log") for e in range(3)]
    assert [seat.environment["VLLM_CPU_OMP_THREADS_BIND"] for seat in made[0]["placement"].engines] == ["0", "1", "2"]
    assert [how.get("standalone", False) for how in made] == [not trained] * 3


def test_where_they_take_turns_the_engines_are_up_and_asleep_before_the_learner_begins():
    done = []

    class Engine(FakeGenerator):
        async def start(self):
            done.append("start")

        async def sleep(self):
            done.append("sleep")

    assert before_starts(Engine(), Placement()) == {}
    waits = before_starts(Engine(), Placement("cuda", "ipc", shared=True))
    assert list(waits) == ["learner"]
    asyncio.run(waits["learner"]())
    assert done == ["start", "sleep"]
