"""Whether a run fits, and which settings it is told to change: DeepCoder's configurations on the GPUs they are for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from shapes import LARGE, MIDDLE, SMALL

from overlap.config.fields import Config
from overlap.config.load import load_config
from overlap.errors import ConfigError
from overlap.placement.devices import Devices
from overlap.placement.engine_memory import kv_room, kv_tokens
from overlap.placement.fit import check_fit, named_devices, planned_seats, sequences_at_once
from overlap.placement.memory import GIB, HOST, MACHINE, PHASES, MemoryPlan, memory_plan
from overlap.placement.planned_run import PlannedRun
from overlap.placement.seats import place
from overlap.placement.shapes import ModelShape

CONFIGS = Path(__file__).parents[3] / "recipes" / "code_rl" / "configs"
FORMER = ["rollout.replicas=1", "rollout.gpu_memory=0.8", "learn.offload=none"]
"""DeepCoder-14B with one engine of two GPUs, beside a learner that stays where it is."""
SPARE = 5 * 10**9


def shipped(name: str, *more: str) -> Config:
    return load_config(CONFIGS / f"{name}.yaml", ["verify.workers=1", *more])


def fitting(run: PlannedRun, devices: Devices | str, host: int = 0) -> MemoryPlan:
    devices = named_devices(devices) if isinstance(devices, str) else devices
    return check_fit(run, planned_seats(run.cfg, devices, host))


def refused(run: PlannedRun, devices: Devices | str, host: int = 0) -> str:
    with pytest.raises(ConfigError) as caught:
        fitting(run, devices, host)
    return str(caught.value)


@pytest.mark.promise("memory-plan")
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
    plan = fitting(PlannedRun(cfg, shape), hardware)
    gpus = [place for place in plan.places if place != HOST]
    assert len(gpus) == len(hardware.names)
    for gpu in gpus:
        assert plan.there[gpu] - plan.most(gpu) >= SPARE
        for phase, item in (("generate", "KV cache"), ("actor", "parameters")):
            assert sum(use.items.get(item, 0) for use in plan.at(gpu, phase)) > 0, (gpu, phase)
    assert place(cfg, hardware).sleeps


@pytest.mark.promise("memory-plan")
def test_a_refusal_names_phase_device_bytes_and_the_first_hint_is_a_way_out():
    told = refused(PlannedRun(shipped("deepcoder_14b_16k", *FORMER), LARGE), "8x80")
    assert told == (
        "learn.offload='none': the run does not fit: in phase 'generate' 101.3 GiB are needed on GPU 0, of which "
        "76.8 can be used (96%); settings that may help, in the order to try them: learn.offload=sleep, "
        "lower rollout.gpu_memory, learn.lora_rank=16; else use a smaller policy or more devices"
    )
    for setting in ("learn.offload=sleep", "rollout.gpu_memory=0.45"):
        fitting(PlannedRun(shipped("deepcoder_14b_16k", *FORMER, setting), LARGE), "8x80")


CHANGES = {
    "lower rollout.gpu_memory": "rollout.gpu_memory=0.3",
    "lower learn.micro_batch_tokens": "learn.micro_batch_tokens=768",
    "raise learn.zero_stage": "learn.zero_stage=3",
    "raise learn.ranks": "learn.ranks=8",
    "raise learn.sequence_parallel": "learn.sequence_parallel=2",
    "raise rollout.tensor_parallel": "rollout.tensor_parallel=2",
    "lower rollout.max_sequences": "rollout.max_sequences=1",
    "lower rollout.replicas": "rollout.replicas=1",
    "lower learn.ranks": "learn.ranks=1",
    "lower model.response_tokens": "model.response_tokens=1",
    "lower model.response_tokens and learn.micro_batch_tokens": "learn.micro_batch_tokens=513",
}


@pytest.mark.parametrize(
    ("devices", "host", "settings", "hints"),
    [
        ("2x24", 0, ["learn.ranks=2", "rollout.replicas=0"], 7),
        ("2x24", 0, ["learn.ranks=2", "learn.zero_stage=1", "learn.offload=sleep"], 7),
        ("8x24", 0, ["learn.ranks=4", "rollout.weight_backend=ipc", "rollout.replicas=1"], 8),
        (Devices(cores=tuple(range(8))), 20 * GIB, ["learn.ranks=2", "rollout.replicas=2"], 8),
        ("8x80", 5 * GIB, ["learn.ranks=8", "learn.zero_stage=2", "learn.offload=sleep"], 3),
        ("8x80", 5 * GIB, ["learn.ranks=8", "learn.zero_stage=2", "learn.offload=sleep", "learn.lora_rank=16"], 3),
    ],
)
def test_each_hint_lowers_what_is_needed_where_it_is_short(devices, host: int, settings: list[str], hints: int):
    settings = ["learn.micro_batch_tokens=8192", "learn.checkpointing=never", *settings]
    run = PlannedRun(load_config(None, settings), MIDDLE)
    hardware = named_devices(devices) if isinstance(devices, str) else devices
    plan = memory_plan(run, planned_seats(run.cfg, hardware, host))
    short = plan.shortage()
    named = refused(run, devices, host).partition("to try them: ")[2].partition("; else")[0].split(", ")
    lowered = []
    for hint in named:
        shorter = ["model.response_tokens=1"] if "response_tokens" in hint else []
        changed = load_config(None, [*settings, *CHANGES.get(hint, hint).split(" and "), *shorter])
        after = memory_plan(PlannedRun(changed, MIDDLE), planned_seats(changed, hardware, host))
        lowered.append((hint, after.in_use(short.place, short.phase) < plan.in_use(short.place, short.phase)))
    assert (len(lowered), [hint for hint, less in lowered if not less]) == (hints, []), (short, lowered)


def test_a_learner_that_is_too_large_for_gpus_of_its_own_is_told_to_share_itself_among_more():
    settings = ["learn.ranks=4", "learn.zero_stage=2", "run.device=cuda", "rollout.weight_backend=nccl"]
    settings += ["rollout.replicas=1"]
    told = refused(PlannedRun(load_config(None, settings), LARGE), "8x80")
    assert "raise learn.zero_stage, raise learn.ranks" in told
    assert "rollout.gpu_memory" not in told  # its GPUs have no engine


@pytest.mark.parametrize(("stage", "told"), [(1, True), (2, False)])
def test_one_rank_is_not_told_to_divide_itself_further(stage: int, told: bool):
    settings = ["run.device=cuda", "learn.offload=sleep", f"learn.zero_stage={stage}", "rollout.gpu_memory=0.45"]
    assert ("raise learn.zero_stage" in refused(PlannedRun(load_config(None, settings), LARGE), "1x80")) == told


@pytest.mark.parametrize(("share", "fits"), [(0.1, False), (0.5, True)])
def test_an_engine_whose_share_does_not_hold_one_sequence_is_refused(share: float, fits: bool):
    cfg = load_config(None, [f"rollout.gpu_memory={share}", "run.device=cuda", "learn.offload=sleep"])
    run = PlannedRun(cfg, SMALL)
    if fits:
        fitting(run, "1x44")
        return
    told = refused(run, "1x44")
    assert "768 tokens needs 5.7 GiB of GPU 0, and its share (rollout.gpu_memory) is 4.4" in told
    assert "order to try them: raise rollout.gpu_memory, lower model.response_tokens; else" in told


def test_gpus_of_which_nobody_knows_the_bytes_refuse_nothing():
    plan = fitting(PlannedRun(shipped("deepcoder_14b_16k", *FORMER), LARGE), Devices.gpus(8))
    assert all(plan.most(place) > 0 for place in plan.places)


@pytest.mark.parametrize(("host", "fits"), [(400, True), (60, False)])
def test_a_host_that_cannot_hold_what_leaves_the_gpus_is_refused(host: int, fits: bool):
    run = PlannedRun(shipped("deepcoder_14b_16k"), LARGE)
    if fits:
        fitting(run, "8x80", host * GIB)
        return
    told = refused(run, "8x80", host * GIB)
    assert f"of the machine's memory are needed, and {host}.0 are free" in told
    assert told.endswith("use a smaller policy or more free memory")


@pytest.mark.parametrize(("gib", "fits"), [(44.0, True), (40.5, False)])
def test_a_plan_that_needs_all_of_a_gpu_is_refused(gib: float, fits: bool):
    """CUDA has less to give than the driver names, and no pieces that fit exactly."""
    run = PlannedRun(load_config(None, ["run.device=cuda", "learn.offload=sleep", "rollout.gpu_memory=0.5"]), SMALL)
    plan = memory_plan(run, planned_seats(run.cfg, named_devices("1x44")))
    assert 39 < plan.most("GPU 0") / GIB < 40
    if fits:
        fitting(run, f"1x{gib}")
    else:
        assert "are needed on GPU 0, of which 38.9 can be used (96%)" in refused(run, f"1x{gib}")


def sequences(shape: ModelShape, devices: str, *more: str, name: str = "deepcoder_1.5b_1gpu") -> int:
    run = PlannedRun(shipped(name, *more), shape)
    return sequences_at_once(run, planned_seats(run.cfg, named_devices(devices)))


def test_an_engine_decodes_as_many_sequences_as_its_cache_holds_at_a_third_of_a_context():
    run = PlannedRun(shipped("deepcoder_14b_16k"), LARGE)
    assert sequences(LARGE, "8x80", name="deepcoder_14b_16k") == 3 * kv_tokens(run, 80 * GIB) // (2048 + 16384) == 85
    assert (sequences(SMALL, "1x80"), sequences(SMALL, "1x141")) == (355, 512)
    assert sequences(SMALL, "1x80", "rollout.max_sequences=7") == 7
    assert sequences(LARGE, "8x40", "rollout.gpu_memory=0.42", name="deepcoder_14b_16k") == 1
    for nobody_knows in (Devices.gpus(8), Devices()):
        cfg = load_config(None, ["learn.ranks=1"])
        assert sequences_at_once(PlannedRun(cfg, LARGE), planned_seats(cfg, nobody_knows)) == 64


def test_on_a_cpu_the_memory_that_is_free_bounds_all_processes_together():
    settings = ["run.device=cpu", "rollout.max_sequences=512", "learn.ranks=2"]
    run = PlannedRun(load_config(None, settings), SMALL)
    told = refused(run, Devices(), 30 * GIB)
    assert "of the machine's memory are needed, and 30.0 are free" in told
    assert "lower rollout.max_sequences, raise learn.zero_stage, lower learn.ranks" in told
    plan = fitting(run, Devices(), 500 * GIB)
    assert plan.most(MACHINE) == max(plan.total(MACHINE, phase) for phase in PHASES)


@pytest.mark.parametrize(
    ("settings", "critic", "field", "message"),
    [
        (["model.response_tokens=100000"], None, "model.response_tokens", "model.policy has a context of 65536"),
        (["model.response_tokens=8192", "learn.advantage=gae"], 4096, "model.response_tokens",
         "critic.policy has a context of 4096"),
        (["rollout.tensor_parallel=8"], None, "rollout.tensor_parallel", "12 heads of queries and 2 of keys: use"),
        (["rollout.tensor_parallel=3"], None, "rollout.tensor_parallel", "use 1 or 2"),
        (["learn.sequence_parallel=8"], None, "learn.sequence_parallel", "use a number that divides both, or 1"),
        (["rollout.tensor_parallel=4"], None, "", ""),
        (["learn.sequence_parallel=2"], None, "", ""),
    ],
)  # fmt: skip
def test_what_a_model_cannot_do_is_refused_before_it_is_planned(settings, critic, field: str, message: str):
    known = replace(SMALL, context=65536)
    more = ["learn.ranks=8", "learn.micro_batch_tokens=200000", "run.device=cuda", "learn.offload=sleep"]
    more = more if field else ["learn.ranks=4", "learn.zero_stage=3", "run.device=cuda"]
    run = PlannedRun(load_config(None, [*more, *settings]), known, critic and replace(known, context=critic))
    if not field:
        fitting(run, "8x80")
        return
    told = refused(run, "8x80")
    assert told.startswith(f"{field}=")
    assert message in told


@pytest.mark.parametrize(
    ("other", "settings", "message"),
    [
        ({"context": 4096}, ["model.response_tokens=8192"], "learn.reference has a context of 4096"),
        ({"heads": 16}, ["learn.ranks=8", "learn.sequence_parallel=2"], "learn.reference have other heads"),
        ({"parameters": 200 * 10**9}, [], "the run does not fit"),
        ({"heads": 16, "parameters": 7 * 10**9}, ["learn.ranks=8", "learn.zero_stage=3"], ""),
    ],
)
def test_a_reference_policy_that_cannot_be_held_beside_the_policy_is_refused(other, settings, message: str):
    more = ["run.device=cuda", "learn.kl_coef=1", "learn.reference=teacher", "learn.micro_batch_tokens=16384"]
    run = PlannedRun(load_config(None, [*more, *settings]), replace(SMALL, context=65536))
    run = replace(run, reference=replace(run.policy, **other))
    if message:
        assert message in refused(run, "8x80")
    else:
        fitting(run, "8x80")


@pytest.mark.parametrize("text", ["", "8", "0x80", "8x0", "8x80GB", "80x8x2", "8x0.0000000001", "8x" + "9" * 400])
def test_hardware_is_named_by_count_and_gib(text: str):
    with pytest.raises(ConfigError, match="for instance 8x80"):
        named_devices(text)
    assert named_devices("2x79.5") == Devices.gpus(2, int(79.5 * GIB))


def test_heads_of_keys_that_are_fewer_than_an_engines_gpus_are_in_the_cache_of_several():
    def token(parallel: int) -> float:
        run = PlannedRun(load_config(None, [f"rollout.tensor_parallel={parallel}", "run.device=cuda"]), SMALL)
        return kv_room(run, 80 * GIB) / kv_tokens(run, 80 * GIB)

    assert token(4) == pytest.approx(token(2), rel=1e-4)
    assert token(2) == pytest.approx(token(1) / 2, rel=1e-4)
