"""Whether a run fits, and the settings that would make it fit: DeepCoder's configurations on the GPUs they are for."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
from shapes import LARGE, MIDDLE, SMALL

from overlap.config import Config, load_config
from overlap.errors import ConfigError
from overlap.placement import Asked, Devices, ModelShape, check_fit, memory_plan, named_devices, place, seating_on
from overlap.placement.fit import GIB, ways_out, with_settings
from overlap.placement.memory import HOST, MACHINE, PHASES, kv_room, kv_tokens

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
    assert "in phase 'generate' 101.3 GiB are needed on GPU 0, which has 80.0" in told
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
        ["learn.offload"],
        ["learn.zero_stage", "learn.micro_batch_tokens"],
        ["learn.ranks", "learn.micro_batch_tokens"],
    ]


@pytest.mark.parametrize(
    ("devices", "name", "settings", "ways"),
    [
        ("8x80", "14b_32k", ["learn.zero_stage=1"], [
            "learn.zero_stage=3",
            "rollout.gpu_memory=0.6 learn.zero_stage=2 learn.sequence_parallel=2",
            "rollout.gpu_memory=0.6 learn.zero_stage=2 learn.offload=cpu",
        ]),
        ("8x80", "14b_32k", ["learn.zero_stage=2", *FORMER], [
            "learn.offload=sleep learn.zero_stage=3",
            "rollout.gpu_memory=0.5 learn.zero_stage=3",
            "rollout.gpu_memory=0.3 learn.sequence_parallel=2",
        ]),
        ("1x40", "1.5b_1gpu", ["rollout.gpu_memory=0.1"], [
            "rollout.gpu_memory=0.2 learn.offload=cpu",
            "rollout.gpu_memory=0.2 learn.lora_rank=16",
            "rollout.gpu_memory=0.2 learn.micro_batch_tokens=6144 model.response_tokens=4096",
        ]),
    ],
)  # fmt: skip
def test_ways_out_are_the_smallest_and_gentlest_that_make_it_fit(devices, name, settings, ways):
    seating = seating_on(named_devices(devices))
    asked = Asked(shipped(f"deepcoder_{name}", *settings), SMALL if name.startswith("1.5b") else LARGE)
    found = ways_out(asked, seating)
    assert [" ".join(map(str, way)) for way in found] == ways

    def fits(way) -> bool:
        try:
            changed = with_settings(asked, way)
        except ConfigError:  # shorter passes alone would not hold a response
            return False
        return memory_plan(changed, seating(changed.cfg)).shortage() is None

    for way in found:
        assert fits(way)
        assert not any(fits(fewer) for fewer in combinations(way, len(way) - 1))
    assert ways_out(asked, seating, count=1) == found[:1]


def test_a_run_that_nothing_makes_fit_is_told_so():
    cfg = load_config(None, ["run.device=cuda"])
    told = "none of the settings that were tried makes it fit: use a smaller policy, or "
    with pytest.raises(ConfigError, match=told + "take more devices"):
        check_fit(Asked(cfg, LARGE), seating_on(named_devices("1x16")))
    with pytest.raises(ConfigError, match=told + "free some"):
        check_fit(Asked(load_config(None, ["run.device=cpu"]), LARGE), seating_on(Devices(), host=GIB))


@pytest.mark.parametrize(
    ("devices", "shape", "settings", "expected"),
    [
        (
            "1x40",
            SMALL,
            [],
            "learn.offload=cpu, learn.lora_rank=16, learn.micro_batch_tokens=6144 model.response_tokens=4096",
        ),
        ("1x24", SMALL, [], "G7 learn.offload=cpu, G7 learn.lora_rank=16"),
        ("1x80", MIDDLE, [], "G7 learn.offload=cpu, G7 learn.lora_rank=16"),
        ("1x80", LARGE, [], "G6 learn.zero_stage=2 learn.offload=cpu, G6 learn.lora_rank=16"),
        (
            "2x24",
            MIDDLE,
            ["learn.lora_rank=16"],
            "learn.micro_batch_tokens=10240 model.response_tokens=8192",
        ),
    ],
)
def test_a_smaller_machine_is_told_what_fits_on_it(devices: str, shape: ModelShape, settings: list[str], expected: str):
    asked, seating = Asked(shipped("deepcoder_1.5b_1gpu", *settings), shape), seating_on(named_devices(devices))
    ways = ways_out(asked, seating)
    told = ", ".join(" ".join(map(str, way)) for way in ways)
    assert told == expected.replace("G", "rollout.gpu_memory=0.")
    for way in ways:
        changed = shipped("deepcoder_1.5b_1gpu", *settings, *map(str, way))
        check_fit(Asked(changed, shape), seating)


@pytest.mark.parametrize(("share", "fits"), [(0.1, False), (0.5, True)])
def test_an_engine_whose_share_does_not_hold_one_sequence_is_refused(share: float, fits: bool):
    cfg = load_config(None, [f"rollout.gpu_memory={share}", "run.device=cuda", "learn.offload=sleep"])
    asked, seating = Asked(cfg, SMALL), seating_on(named_devices("1x40"))
    if fits:
        check_fit(asked, seating)
        return
    with pytest.raises(
        ConfigError,
        match=r"one sequence of 768 tokens needs 5.7 GiB of GPU 0, and its share \(rollout.gpu_memory\) is 4.0",
    ) as refused:
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
        with pytest.raises(ConfigError, match=f"of the machine's memory are needed, and {host}.0 are free"):
            check_fit(asked, seating)


def test_on_a_cpu_the_memory_that_is_free_bounds_all_processes_together():
    asked = Asked(load_config(None, ["run.device=cpu", "rollout.max_sequences=512"]), SMALL)
    with pytest.raises(ConfigError, match=r"of the machine's memory are needed, and 30\.0 are free"):
        check_fit(asked, seating_on(Devices(), host=30 * GIB))
    plan = check_fit(asked, seating_on(Devices(), host=500 * GIB))
    assert plan.most(MACHINE) == max(plan.total(MACHINE, phase) for phase in PHASES)


@pytest.mark.parametrize(
    ("host", "settings", "ways"),
    [
        (60, ["learn.ranks=4", "learn.checkpointing=never"], [
            "learn.checkpointing=always learn.ranks=2",
            "learn.micro_batch_tokens=768 learn.ranks=2",
            "learn.checkpointing=always learn.lora_rank=16",
        ]),
        (45, ["learn.ranks=2", "learn.zero_stage=1"], [
            "learn.zero_stage=2 learn.ranks=1",
            "learn.ranks=1 rollout.max_sequences=8",
            "learn.checkpointing=always learn.micro_batch_tokens=768 learn.ranks=1",
        ]),
    ],
)  # fmt: skip
def test_on_a_cpu_fewer_ranks_and_fewer_sequences_are_ways_out(host: int, settings: list[str], ways: list[str]):
    asked = Asked(load_config(None, ["run.device=cpu", *settings]), SMALL)
    assert [" ".join(map(str, way)) for way in ways_out(asked, seating_on(Devices(), host=host * GIB))] == ways


@pytest.mark.parametrize(
    ("settings", "critic", "field"),
    [
        (["model.response_tokens=100000"], None, "model.response_tokens"),
        (["model.response_tokens=8192", "learn.advantage=gae"], 4096, "model.response_tokens"),
        (["rollout.tensor_parallel=8"], None, "rollout.tensor_parallel"),
        (["learn.sequence_parallel=8"], None, "learn.sequence_parallel"),
    ],
)
def test_what_a_model_cannot_do_is_refused_before_it_is_planned(settings: list[str], critic: int | None, field: str):
    known = replace(SMALL, context=65536)
    more = ["learn.ranks=8", "learn.micro_batch_tokens=200000", "run.device=cuda", "learn.offload=sleep"]
    asked = Asked(load_config(None, [*more, *settings]), known, critic and replace(known, context=critic))
    with pytest.raises(ConfigError) as refused:
        check_fit(asked, seating_on(named_devices("8x80")))
    assert refused.value.field == field
    assert ("critic.policy has a context of 4096" in str(refused.value)) == bool(critic)
    assert not any(setting.field == field for way in ways_out(asked, seating_on(named_devices("8x80")))
                   for setting in way if setting.value == 8)  # fmt: skip


@pytest.mark.parametrize(
    "text", ["", "8", "x80", "0x80", "8x0", "8x80GB", "80x8x2", "8x0.0000000001", "8x" + "9" * 400]
)
def test_hardware_is_named_by_count_and_gib(text: str):
    with pytest.raises(ConfigError, match="for instance 8x80"):
        named_devices(text)
    assert named_devices("2x79.5") == Devices.gpus(2, int(79.5 * GIB))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            ["rollout.tensor_parallel=3"],
            "rollout.tensor_parallel=3: the policy has 12 heads of queries and 2 of keys: use 1 or 2",
        ),
        (
            ["learn.ranks=4", "learn.sequence_parallel=4"],
            "learn.sequence_parallel=4: .* use a number that divides both, or 1",
        ),
        (["rollout.tensor_parallel=4"], ""),
        (["learn.ranks=4", "learn.sequence_parallel=2"], ""),
    ],
)
def test_heads_that_cannot_be_shared_are_refused_before_a_model_is_loaded(settings: list[str], message: str):
    asked = Asked(load_config(None, ["run.device=cuda", "learn.zero_stage=3", *settings]), SMALL)
    seating = seating_on(named_devices("8x80"))
    if not message:
        check_fit(asked, seating)
        return
    with pytest.raises(ConfigError, match=message):
        check_fit(asked, seating)


def test_heads_of_keys_that_are_fewer_than_an_engines_gpus_are_in_the_cache_of_several():
    def token(parallel: int) -> float:
        asked = Asked(load_config(None, [f"rollout.tensor_parallel={parallel}", "run.device=cuda"]), SMALL)
        return kv_room(asked, 80 * GIB) / kv_tokens(asked, 80 * GIB)

    assert token(4) == pytest.approx(token(2), rel=1e-4)
    assert token(2) == pytest.approx(token(1) / 2, rel=1e-4)
