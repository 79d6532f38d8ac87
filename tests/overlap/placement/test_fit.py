"""Whether a run fits, which settings it is told to change, and what a person sees of the plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from shapes import LARGE, MIDDLE, SMALL

from overlap.config.fields import Config
from overlap.config.load import load_config
from overlap.core.errors import ConfigError
from overlap.placement.devices import Devices
from overlap.placement.engine_memory import kv_tokens
from overlap.placement.fit import check_fit, named_devices, planned_seats, sequences_at_once
from overlap.placement.memory import GIB, HOST, LEARNING, SAMPLING, MemoryNeed, held, memory_plan
from overlap.placement.planned_run import PlannedRun, Seats
from overlap.placement.seats import place
from overlap.placement.shapes import ModelShape
from overlap.placement.table import amount, cache_line, memory_lines, seats_line

CONFIGS = Path(__file__).parents[3] / "recipes" / "code_rl" / "configs"
FORMER = ["rollout.replicas=1", "rollout.gpu_memory=0.8", "learn.offload=none"]
"""DeepCoder-14B with one engine of two GPUs, beside a learner that stays where it is."""
SPARE = 5 * 10**9


def shipped(name: str, *more: str) -> Config:
    return load_config(CONFIGS / f"{name}.yaml", ["verify.workers=1", *more])


def fitting(run: PlannedRun, devices: Devices | str, host: int = 0) -> tuple[MemoryNeed, ...]:
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
    gpus = [need for need in plan if need.place != HOST]
    assert len(gpus) == len(hardware.names)
    moments = held(PlannedRun(cfg, shape), planned_seats(cfg, hardware))
    for need in gpus:
        assert 80 * GIB - need.total >= SPARE
        for moment, item in ((SAMPLING, "KV cache"), (LEARNING, "weights")):
            assert moments[need.place][moment][item] > 0, (need.place, moment)
    assert place(cfg, hardware).sleeps


@pytest.mark.promise("memory-plan")
def test_a_refusal_names_the_place_its_bytes_the_biggest_item_and_a_way_out_that_holds() -> None:
    told = refused(PlannedRun(shipped("deepcoder_14b_16k", *FORMER), LARGE), "8x80")
    assert told.startswith("rollout.gpu_memory=0.8: the run does not fit: GPU 0 needs ")
    assert " GiB during sampling, 76.8 free; most of it is for KV cache (" in told
    assert told.endswith("): use a lower rollout.gpu_memory")
    fitting(PlannedRun(shipped("deepcoder_14b_16k", *FORMER, "rollout.gpu_memory=0.45"), LARGE), "8x80")


CHANGES = {
    "a lower rollout.gpu_memory": "rollout.gpu_memory=0.3",
    "a lower learn.micro_batch_tokens": "learn.micro_batch_tokens=768",
    "more learn.ranks": "learn.ranks=8",
    "a lower rollout.max_sequences": "rollout.max_sequences=1",
    "a lower rollout.replicas": "rollout.replicas=1",
    "a lower learn.ranks": "learn.ranks=1",
    "learn.lora_rank=0, which trains all weights": "learn.lora_rank=0",
    "learn.lora_rank=16, which trains adapters": "learn.lora_rank=16",
}


@pytest.mark.parametrize(
    ("devices", "host", "settings"),
    [
        ("2x24", 0, ["learn.ranks=2", "rollout.replicas=0"]),
        ("2x24", 0, ["learn.ranks=2", "learn.zero_stage=1", "learn.offload=sleep"]),
        ("8x24", 0, ["learn.ranks=8", "rollout.replicas=1"]),
        ("4x80", 0, ["learn.ranks=4", "learn.micro_batch_tokens=200000"]),
        (Devices(cores=tuple(range(8))), 20 * GIB, ["learn.ranks=2", "rollout.replicas=2"]),
        ("8x80", 5 * GIB, ["learn.ranks=8", "learn.zero_stage=2", "learn.offload=sleep"]),
        ("8x80", 5 * GIB, ["learn.ranks=8", "learn.zero_stage=2", "learn.offload=sleep", "learn.lora_rank=16"]),
    ],
)
def test_the_way_out_lowers_what_is_needed_where_it_is_short(devices, host: int, settings: list[str]) -> None:
    settings = ["learn.micro_batch_tokens=8192", "learn.recompute=never", *settings]
    run = PlannedRun(load_config(None, settings), MIDDLE)
    hardware = named_devices(devices) if isinstance(devices, str) else devices

    def need(run: PlannedRun, place: str) -> int:
        moments = held(run, planned_seats(run.cfg, hardware, host))[place]
        return max(sum(items.values()) for items in moments.values())

    told = refused(run, devices, host)
    place = told.partition("does not fit: ")[2].partition(" needs")[0]
    way_out = told.rpartition(": use ")[2]
    changed = load_config(None, [*settings, CHANGES.get(way_out, way_out)])
    assert need(PlannedRun(changed, MIDDLE), place) < need(run, place), told


def test_an_engine_whose_share_does_not_hold_one_sequence_is_refused():
    settings = ["run.device=cuda", "learn.offload=sleep"]
    told = refused(PlannedRun(load_config(None, [*settings, "rollout.gpu_memory=0.1"]), SMALL), "1x44")
    assert "768 tokens needs 5.7 GiB of a GPU, and its share (rollout.gpu_memory) is 4.4" in told
    assert told.endswith("use a higher rollout.gpu_memory")
    half = PlannedRun(load_config(None, [*settings, "rollout.gpu_memory=0.5"]), SMALL)
    fitting(half, "1x44")
    told = refused(half, "1x40.5")  # CUDA has less to give than the driver names, and no pieces that fit exactly
    assert "GPU 0 needs 39." in told
    assert "38.9 free" in told


def test_a_host_that_cannot_hold_what_leaves_the_gpus_is_refused_and_unknown_bytes_are_not_checked():
    fitting(PlannedRun(shipped("deepcoder_14b_16k", *FORMER), LARGE), Devices.gpus(8))
    run = PlannedRun(shipped("deepcoder_14b_16k"), LARGE)
    fitting(run, "8x80", 400 * GIB)
    told = refused(run, "8x80", 60 * GIB)
    assert "the run does not fit: host needs " in told
    assert "60.0 free; most of it is for offloaded states" in told
    assert told.endswith("use learn.offload=none")


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
    assert "machine needs " in told
    assert "30.0 free; most of it is for master and Adam" in told
    assert told.endswith("use learn.zero_stage=3")
    fitting(run, Devices(), 500 * GIB)


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


GIB = 2**30
NONE = Seats((), (), (), False, "shm")


def test_an_amount_is_what_is_needed_at_worst_and_free() -> None:
    assert amount(9.3 * GIB, 15.4 * GIB, 22.5 * GIB) == "needs 9.3 GiB (at worst 15.4), 22.5 free"
    assert amount(9.3 * GIB, 9.3 * GIB, 0) == "needs 9.3 GiB, free is not known"
    assert amount(2**20, 2**20, GIB) == "needs 0.00098 GiB, 1.0 free"


def test_gpus_with_the_same_figures_share_a_row_with_the_items_of_their_fullest_moment() -> None:
    cfg = load_config(None, ["run.device=cuda", "learn.zero_stage=3", "rollout.tensor_parallel=2", "learn.ranks=6"])
    seats = planned_seats(cfg, named_devices("8x80"))
    rows = [row for _, row in memory_lines(memory_plan(PlannedRun(cfg, LARGE), seats), seats)]
    assert rows[0].startswith("GPU 0-1 needs 53.")
    assert "GiB, 76.8 free; most during the weight transfer: KV cache " in rows[0]
    assert rows[1].startswith("GPU 2-7 needs ")
    assert "; most during learning: master and Adam 27.5, " in rows[1]
    assert rows[2] == "/dev/shm needs 1.0 GiB, free is not known; GPUs talk to each other by it, too"


def test_gpus_that_are_not_neighbours_are_named_one_by_one() -> None:
    needs = [MemoryNeed(f"GPU {n}", "learning", {"weights": size * GIB, "small": 9}, 0, size * GIB + 9)
             for n, size in enumerate((1, 2, 1))]  # fmt: skip
    assert [row for _, row in memory_lines(needs, NONE)] == [
        "GPU 0,2 needs 1.0 GiB, free is not known; most during learning: weights 1.0",
        "GPU 1 needs 2.0 GiB, free is not known; most during learning: weights 2.0",
    ]


def test_who_sits_where_is_told_and_who_has_nothing_to_do():
    shared = ["rollout.tensor_parallel=2", "rollout.replicas=0", "learn.ranks=8", "run.device=cuda"]
    lines = {
        "8x80": (shared, "4 vLLM engines of 2 GPUs on GPU 0-7; 8 learner ranks on GPU 0-7; colocated: engine "
                         "and learner take turns; weight transfer by CUDA IPC"),
        "4x80": (["rollout.replicas=1"], "1 vLLM engine of 1 GPU on GPU 0; 1 learner rank on GPU 1; "
                                         "weight transfer by NCCL; unused: GPU 2-3"),
        "2x80": (["rollout.replicas=1", "learn.ranks=2"],
                 "1 vLLM engine of 1 GPU on GPU 0; 2 learner ranks on GPU 0-1; colocated: engine and learner take "
                 "turns; weight transfer by CUDA IPC; "
                 "no engine on GPU 1, idle during generation (rollout.replicas=0 uses all)"),
        "3x80": ([], "2 vLLM engines of 1 GPU on GPU 0-1; 1 learner rank on GPU 2; weight transfer by NCCL"),
    }  # fmt: skip
    for devices, (settings, line) in lines.items():
        assert seats_line(planned_seats(load_config(None, settings), named_devices(devices))) == line
    cpu = planned_seats(load_config(), Devices())
    assert seats_line(cpu) == "1 vLLM engine on the CPU; 1 learner rank on the CPU; weight transfer by shared memory"


def test_what_an_engines_cache_holds_is_told_in_sequences_of_full_length():
    settings = ["rollout.tensor_parallel=2", "rollout.gpu_memory=0.8", "run.device=cuda", "learn.ranks=6"]
    settings += ["model.prompt_tokens=2048", "model.response_tokens=32768", "learn.micro_batch_tokens=34816"]
    cfg = load_config(None, settings)
    told = "523,374 tokens per engine: 15 sequences of full length (34,816 tokens) at once, up to "
    assert (
        cache_line(PlannedRun(cfg, LARGE), planned_seats(cfg, named_devices("8x80")))
        == told + "rollout.max_sequences=45 shorter ones"
    )
    assert not cache_line(PlannedRun(cfg, LARGE), planned_seats(cfg, Devices.gpus(8)))
