"""Whether a run fits, and the settings that would make it fit: DeepCoder's configurations on the GPUs they are for."""

from __future__ import annotations

from pathlib import Path

import pytest
from shapes import LARGE, SMALL

from overlap.config import Config, load_config
from overlap.errors import ConfigError
from overlap.placement import Asked, Devices, check_fit, memory_plan, named_devices, place, seating_on
from overlap.placement.fit import GIB, ways_out, with_settings
from overlap.placement.memory import HOST, MACHINE, PHASES

CONFIGS = Path(__file__).parents[3] / "recipes" / "code_rl" / "configs"
FORMER = ["rollout.replicas=1", "rollout.gpu_memory=0.8", "learn.offload=none"]
"""DeepCoder-14B with one engine of two GPUs, beside a learner that stays where it is."""
SPARE = 5 * 10**9


def shipped(name: str, *more: str) -> Config:
    return load_config(CONFIGS / f"{name}.yaml", ["verify.workers=1", *more])


@pytest.mark.parametrize(
    ("name", "shape", "devices"),
    [
        ("deepcoder_14b_16k", LARGE, "8x80"),
        ("deepcoder_14b_32k", LARGE, "8x80"),
        ("deepcoder_1.5b_1gpu", SMALL, "1x80"),
    ],
)
def test_deepcoders_configurations_fit_with_room_to_spare_and_use_all_devices(name, shape, devices):
    cfg, hardware = shipped(name), named_devices(devices)
    plan = check_fit(Asked(cfg, shape), seating_on(hardware))
    gpus = [place for place in plan.places if place != HOST]
    assert len(gpus) == len(hardware.names)
    for gpu in gpus:
        assert plan.there[gpu] - plan.most(gpu) >= SPARE
        for phase, item in (("generate", "KV cache"), ("actor", "parameters")):
            assert sum(use.items.get(item, 0) for use in plan.at(gpu, phase)) > 0, (gpu, phase)
    assert place(cfg, hardware).sleeps


@pytest.mark.parametrize("name", ["deepcoder_14b_16k", "deepcoder_14b_32k"])
def test_one_engine_beside_a_learner_that_stays_is_refused_with_what_would_make_it_fit(name):
    asked, seating = Asked(shipped(name, *FORMER), LARGE), seating_on(named_devices("8x80"))
    with pytest.raises(ConfigError) as refused:
        check_fit(asked, seating)
    told = str(refused.value)
    assert "in phase 'generate' everything that is there wants 99.8 GiB of GPU 0, which has 80.0" in told
    assert told.endswith("it fits with learn.offload=sleep, or with rollout.gpu_memory=0.5, or with learn.ranks=6")
    ways = ways_out(asked, seating)
    for way in ways:
        assert all(str(setting) in told for setting in way)
        changed = with_settings(asked, way)
        assert memory_plan(changed, seating(changed.cfg)).shortage() is None
        for left_out in way if len(way) > 1 else ():
            fewer = with_settings(asked, tuple(setting for setting in way if setting != left_out))
            assert memory_plan(fewer, seating(fewer.cfg)).shortage() is not None


def test_a_learner_that_is_too_large_is_told_three_ways_out_in_the_order_of_their_price():
    settings = ["learn.ranks=4", "learn.zero_stage=2", "rollout.gpu_memory=0.5", "model.response_tokens=8192"]
    cfg = load_config(None, [*settings, "learn.micro_batch_tokens=60000", "run.device=cuda"])
    ways = ways_out(Asked(cfg, LARGE), seating_on(named_devices("8x80")))
    assert [[setting.field for setting in way] for way in ways] == [
        ["learn.zero_stage", "learn.micro_batch_tokens"],
        ["learn.zero_stage", "learn.offload"],
        ["learn.ranks", "learn.micro_batch_tokens"],
    ]


def test_a_run_that_nothing_makes_fit_is_told_so():
    cfg = load_config(None, ["run.device=cuda"])
    with pytest.raises(ConfigError, match="none of the settings that were tried makes it fit"):
        check_fit(Asked(cfg, LARGE), seating_on(named_devices("1x16")))


@pytest.mark.parametrize(("share", "fits"), [(0.1, False), (0.5, True)])
def test_an_engine_whose_share_does_not_hold_one_sequence_is_refused(share: float, fits: bool):
    cfg = load_config(None, [f"rollout.gpu_memory={share}", "run.device=cuda", "learn.offload=sleep"])
    asked, seating = Asked(cfg, SMALL), seating_on(named_devices("1x40"))
    if fits:
        check_fit(asked, seating)
        return
    with pytest.raises(ConfigError, match=r"one full sequence in its share \(rollout.gpu_memory=0.1\)") as refused:
        check_fit(asked, seating)
    assert "rollout.gpu_memory=0.2" in str(refused.value)


def test_gpus_of_which_nobody_knows_the_bytes_refuse_nothing():
    plan = check_fit(Asked(shipped("deepcoder_14b_16k", *FORMER), LARGE), seating_on(Devices.gpus(8)))
    assert all(plan.most(place) > 0 for place in plan.places)


@pytest.mark.parametrize(("host", "fits"), [(400, True), (60, False)])
def test_a_host_that_cannot_hold_what_leaves_the_gpus_is_refused(host: int, fits: bool):
    asked, seating = Asked(shipped("deepcoder_14b_16k"), LARGE), seating_on(named_devices("8x80"), host=host * GIB)
    if fits:
        check_fit(asked, seating)
    else:
        with pytest.raises(ConfigError, match=f"GiB of host, which has {host}.0"):
            check_fit(asked, seating)


def test_on_a_cpu_the_memory_that_is_free_bounds_all_processes_together():
    asked = Asked(load_config(None, ["run.device=cpu", "rollout.max_sequences=512"]), SMALL)
    with pytest.raises(ConfigError, match=r"which has 30\.0") as refused:
        check_fit(asked, seating_on(Devices(), host=30 * GIB))
    assert f"GiB of {MACHINE}" in str(refused.value)
    plan = check_fit(asked, seating_on(Devices(), host=500 * GIB))
    assert plan.most(MACHINE) == max(plan.total(MACHINE, phase) for phase in PHASES)


@pytest.mark.parametrize("text", ["", "8", "x80", "0x80", "8x0", "8x80GB", "80x8x2"])
def test_hardware_is_named_by_count_and_gib(text: str):
    with pytest.raises(ConfigError, match="for instance 8x80"):
        named_devices(text)
    assert named_devices("2x79.5") == Devices.gpus(2, int(79.5 * GIB))
