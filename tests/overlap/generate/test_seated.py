"""An engine on its seat: what it is called, what it sees, and which ranks it has where weights go to all."""

import asyncio
from dataclasses import replace

import pytest
from engine_stub import CFG

from overlap.core import WeightUpdate
from overlap.core.errors import EngineError
from overlap.generate.client import EngineClient
from overlap.placement.devices import Devices
from overlap.placement.seats import place


def two_on(tmp_path, devices):
    cfg = replace(CFG, rollout=replace(CFG.rollout, replicas=2))
    placement = place(cfg, devices)
    return [EngineClient(cfg, tmp_path, tmp_path, placement=placement, engine=e) for e in range(2)]


async def test_each_of_several_engines_has_its_seat_its_seed_its_name_and_its_log(tmp_path, stub):
    engines = two_on(tmp_path, Devices(cores=(0, 1)))
    assert [engine._spec.seed for engine in engines] == [0, 1]
    assert [engine._log.name for engine in engines] == ["engine-0.log", "engine-1.log"]
    seats, folders = [], []
    for engine in engines:
        await engine.start()
        seats.append(stub.seat.environment)
        folders += [path.name.rpartition("-")[0] for path in tmp_path.iterdir() if path.is_dir()]
        await engine.close()
    assert seats == [{"VLLM_CPU_OMP_THREADS_BIND": "0"}, {"VLLM_CPU_OMP_THREADS_BIND": "1"}]
    assert folders == ["engine-0", "engine-1"]


async def test_each_of_several_engines_joins_the_group_of_all_with_ranks_of_its_own(tmp_path, stub):
    init = {"master_port": 1, "rank_offset": 1, "world_size": 3}
    joined = []
    for engine in two_on(tmp_path, Devices.gpus(3)):
        await engine.start()
        stub.engine.connect = lambda info: asyncio.sleep(0, joined.append(info))
        await engine.load(WeightUpdate(0, "nccl", {"init": init, "update": {}}))
        await engine.close()
    assert joined == [init, init | {"rank_offset": 2}]


async def test_the_process_of_an_engine_sees_its_own_gpus_alone(tmp_path, monkeypatch):
    asked = []

    async def start(life, title, module, environment):
        asked.append((title, environment["CUDA_VISIBLE_DEVICES"]))
        raise EngineError("enough")

    monkeypatch.setattr("overlap.generate.client.Peer.start", start)
    for engine in two_on(tmp_path, Devices(("2", "5", "7"))):
        with pytest.raises(EngineError, match="enough"):
            await engine.start()
        await engine.close()
    assert asked == [("the engine-0 process", "2"), ("the engine-1 process", "5")]
