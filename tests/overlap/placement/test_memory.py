"""Bytes by place, phase and item: the arithmetic of a 14B model on eight GPUs by hand, and who is there when."""

from __future__ import annotations

from dataclasses import replace

import pytest
from shapes import LARGE, SMALL

from overlap.config.load import load_config
from overlap.placement.activations import activation_bytes, trained_parameters
from overlap.placement.engine_memory import ASLEEP, WORKSPACE, kv_room, token_bytes
from overlap.placement.memory import (
    GPU_OWN,
    HOST,
    MACHINE,
    PHASES,
    RANK_OWN,
    memory_plan,
)
from overlap.placement.planned_run import PlannedRun, Seats

GB = 1e9
SHARED = Seats((80 * 10**9,) * 8, tuple((e, e + 1) for e in range(0, 8, 2)), tuple(range(8)), True, "ipc")
SETTINGS = ["learn.ranks=8", "learn.zero_stage=3", "rollout.tensor_parallel=2", "run.device=cuda"]
NOTHING = replace(SMALL, parameters=0, vocabulary=0)
LONG = ["model.prompt_tokens=2048", "model.response_tokens=16384", "learn.micro_batch_tokens=18432"]


def asked(*more: str, critic=None, **given) -> PlannedRun:
    return PlannedRun(load_config(None, [*SETTINGS, *LONG, *more]), LARGE, critic, **given)


def held(plan, phase: str, process: str, place: str = "GPU 0") -> dict[str, int]:
    (use,) = [use for use in plan.at(place, phase) if use.process.startswith(process)]
    return dict(use.items)


def test_with_an_optimizer_on_the_host_zero_1_alone_sums_gradients_on_the_gpu_whole_and_in_float32():
    """So DeepSpeed does: of ZeRO 1 in bfloat16 it makes another optimizer then."""
    for stage, numbers in ((1, 4), (2, 0), (3, 0)):
        model = asked(f"learn.zero_stage={stage}", "learn.offload=cpu").trained("actor", reserves=True)
        assert model.here().get("gradients", 0) + model._summed()["gradients"] == numbers * LARGE.parameters
        assert model.states()["gradients"] == pytest.approx(4 * LARGE.parameters / 8)  # on the host


def test_an_engine_that_takes_adapters_has_a_place_for_one_and_its_weights_on_the_host_and_gets_no_others():
    adapters = 2 * trained_parameters(LARGE.decoder, LARGE.parameters, 12)
    alone = asked("learn.lora_rank=12")
    merged, whole = asked("learn.lora_rank=12", "learn.lora_sync=merged"), asked()
    assert (alone.sent[0], merged.sent[0]) == (adapters, 2 * LARGE.parameters)
    assert kv_room(merged, 80 * 10**9) == kv_room(whole, 80 * 10**9)
    place = adapters * 16 // 12  # the next rank that vLLM has a place for
    assert kv_room(whole, 80 * 10**9) - kv_room(alone, 80 * 10**9) == place
    plan = memory_plan(alone, SHARED)
    assert held(plan, "generate", "engine 0")["adapter"] == place
    assert held(plan, "sync", "engine 0")["transfer buffer"] == adapters
    kept = [use.items for use in plan.at(HOST, "actor") if use.process == "engine 0"]
    assert kept == 2 * [{"sleeping weights": LARGE.parameters + place}]
    assert not [use for use in memory_plan(merged, SHARED).at(HOST, "actor") if use.process.startswith("engine")]
    on_cpu = memory_plan(alone, Seats((), ((0,),), (0,), False, "shm", copies=1))
    assert held(on_cpu, "sync", "agents", MACHINE)["transfer buffer"] == adapters
    assert held(on_cpu, "sync", "rank 0", MACHINE)["transfer buffer"] == adapters


def test_frozen_weights_have_no_gradients_and_no_optimizer_states():
    model = asked("learn.lora_rank=16").trained("actor", reserves=True)
    adapters = trained_parameters(LARGE.decoder, LARGE.parameters, 16)
    assert (model.trained, model.parameters) == (adapters, LARGE.parameters + adapters)
    assert sum(size for name, size in model.states().items() if name != "gradient bucket") == pytest.approx(
        (2 * (LARGE.parameters + adapters) + 16 * adapters) / 8, rel=1e-6
    )
    assert model._logits()["logits"] < 1.5 * 10**9


@pytest.mark.parametrize(
    ("offload", "phase", "there", "away"),
    [
        ("none", "generate", 33.2, 0),
        ("sleep", "critic", 0, 206.8),
        ("sleep", "generate", 3.7, 206.8),
        ("sleep", "sync", 3.7, 206.8),
        ("cpu", "critic", 0, 265.9),
        ("cpu", "generate", 3.7, 265.9),
        ("cpu", "sync", 3.7, 265.9),
    ],
)
def test_what_of_the_states_is_on_a_gpu_while_another_has_it(offload, phase, there: float, away: float):
    plan = memory_plan(asked(f"learn.offload={offload}", "learn.advantage=gae", critic=NOTHING), SHARED)
    states = ("parameters", "gradients", "float32 master", "Adam", "policy's states")
    found = held(plan, phase, "rank")
    assert sum(found.get(name, 0) for name in states) / GB == pytest.approx(there, abs=0.05)
    assert plan.total(HOST, phase) / GB == pytest.approx(away, abs=0.1)


@pytest.mark.parametrize(("stage", "gathered"), [(3, 2 * 152064 * 5120), (2, 0)])
def test_while_the_engine_samples_there_is_room_for_what_writing_a_checkpoint_brings_back(stage: int, gathered: int):
    settings = ["learn.advantage=gae", "learn.kl_coef=0.1", "learn.offload=sleep", f"learn.zero_stage={stage}"]
    own = 2 * LARGE.parameters // (8 if stage == 3 else 1)
    critic = 2 * SMALL.trunk // (8 if stage == 3 else 1)
    assert held(memory_plan(asked(*settings, critic=SMALL), SHARED), "generate", "rank") == {
        "parameters": own, "gather bucket": gathered, "critic's states": critic, "own": GPU_OWN
    }  # fmt: skip


@pytest.mark.parametrize(("critic", "states"), [(LARGE, 31.5), (SMALL, 3.5)])
def test_a_critic_is_there_in_its_own_phase_alone_or_in_all(critic, states: float):
    settings = ["learn.advantage=gae"]
    bucket = 2.0
    alone = memory_plan(asked(*settings, "learn.offload=sleep", critic=critic), SHARED)
    beside = memory_plan(asked(*settings, critic=critic), SHARED)
    assert "critic's states" not in {k for k, v in held(alone, "actor", "rank").items() if v}
    assert held(alone, "critic", "rank").get("policy's states", 0) == 0
    assert held(beside, "actor", "rank")["critic's states"] / GB == pytest.approx(states + bucket, abs=0.05)
    assert held(beside, "critic", "rank")["policy's states"] / GB == pytest.approx(33.2 + bucket, abs=0.05)
    own = held(alone, "critic", "rank")
    assert sum(own[n] for n in ("parameters", "gradients", "float32 master", "Adam")) / GB == pytest.approx(
        states, abs=0.05
    )
    assert "logits" not in own


@pytest.mark.parametrize(("share", "tokens"), [(0.5, 231), (0.6, 312), (0.7, 394), (0.8, 475)])
def test_the_kv_cache_of_an_engine_on_two_gpus_in_thousands_of_tokens(share: float, tokens: int):
    run = asked(f"rollout.gpu_memory={share}")
    assert token_bytes(run.cfg, LARGE) == 2 * 96 * 1024
    room = kv_room(run, 80 * 10**9)
    assert room // (96 * 1024) == pytest.approx(tokens * 1000, rel=3e-3)
    assert held(memory_plan(run, SHARED), "generate", "engine") == {
        "own": GPU_OWN,
        "workspace": WORKSPACE,
        "engine weights": LARGE.parameters,
        "KV cache": room,
    }


def test_an_engine_that_takes_turns_sleeps_while_the_learner_learns_and_wakes_for_its_weights_first():
    plan = memory_plan(asked("learn.advantage=gae", critic=SMALL), SHARED)
    for phase in ("critic", "actor"):
        assert held(plan, phase, "engine") == {"own": GPU_OWN, "workspace": ASLEEP}
    assert set(held(plan, "sync", "engine")) == {"own", "workspace", "engine weights", "transfer buffer"}
    split = replace(SHARED, engines=((0, 1),), ranks=(2, 3, 4, 5, 6, 7), turns=False, backend="nccl")
    apart = memory_plan(asked("learn.ranks=6"), split)
    assert all("KV cache" in held(apart, phase, "engine") for phase in PHASES if phase != "critic")
    assert not [use for use in apart.at("GPU 0", "actor") if use.process.startswith("rank")]


def test_engines_that_take_turns_sleep_while_the_learner_starts_and_keep_nothing_on_the_host():
    plan = memory_plan(asked(), SHARED)
    assert held(plan, "start", "engine") == {"own": GPU_OWN, "workspace": ASLEEP}
    assert plan.total(HOST, "start") == 0
    assert plan.total("GPU 0", "start") < plan.total("GPU 0", "generate")


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_an_optimizer_on_the_host_is_never_on_a_gpu_not_even_at_the_start(stage: int):
    settings = [f"learn.zero_stage={stage}", "learn.offload=cpu"]
    plan = memory_plan(asked(*settings), SHARED)
    for phase in PHASES:
        found = held(plan, phase, "rank") if phase != "critic" else {}
        assert not found.get("float32 master", 0) + found.get("Adam", 0)
    start = sum(held(plan, "start", "rank").values())
    whole = 2 * LARGE.parameters
    expected = {1: 2 * whole, 2: 2 * whole, 3: whole / 8 + 2 * LARGE.largest}[stage]
    assert (start - GPU_OWN) / GB == pytest.approx(expected / GB, abs=2.1)  # and a bucket


def test_what_is_trained_alone_is_there_twice_while_it_is_laid_out():
    plain = asked("learn.zero_stage=1", "learn.ranks=8").trained("actor", reserves=True)
    laid = (2 + 4 + 4 / 8) * LARGE.parameters
    assert sum(plain.made().values()) / GB == pytest.approx(laid / GB, abs=0.1)  # float32 states come after the copy
    adapters = asked("learn.zero_stage=1", "learn.lora_rank=16").trained("actor", reserves=True)
    assert sum(adapters.made().values()) < 1.05 * adapters.whole


def test_activations_of_long_passes_are_those_of_layer_inputs_and_one_layer():
    model = asked().trained("actor", reserves=True)
    inputs = 491_520 * 18_432
    assert inputs / GB == pytest.approx(9.1, abs=0.05)
    largest = held(memory_plan(asked("learn.offload=sleep"), SHARED), "actor", "rank")
    assert model.checkpointing
    assert inputs < largest["activations"] + largest["a layer's backward"] < 2 * inputs
    assert largest["activations"] == activation_bytes(LARGE.decoder, 18_432, width=2, checkpointing=True)
    halved = asked("learn.sequence_parallel=2").trained("actor", reserves=True)
    assert halved.tokens == model.tokens // 2


def test_a_reference_policy_is_shared_by_the_ranks_under_zero_3_alone():
    for stage, size in ((3, 3.7), (2, 29.5)):
        plan = memory_plan(asked("learn.kl_coef=0.1", f"learn.zero_stage={stage}"), SHARED)
        assert held(plan, "actor", "rank")["reference"] / GB == pytest.approx(size, abs=0.05)
    adapters = memory_plan(asked("learn.kl_coef=0.1", "learn.lora_rank=16"), SHARED)
    assert "reference" not in held(adapters, "actor", "rank")  # it is the policy without them


def test_a_reference_policy_has_the_place_of_its_own_size_and_reads_what_the_policy_learns_from():
    """A 14B teacher beside a small policy needs more for its pass than the policy for its step."""
    held_against = ["learn.kl_coef=1", "learn.reference=teacher", "learn.lora_rank=16"]
    run = asked(*held_against, reference=LARGE)
    small = replace(run, policy=SMALL)
    for stage, size in ((3, 3.7), (2, 29.5)):
        cfg = asked(*held_against, f"learn.zero_stage={stage}").cfg
        for one in (run, small):
            found = held(memory_plan(replace(one, cfg=cfg), SHARED), "actor", "rank")
            assert found["reference"] / GB == pytest.approx(size, abs=0.05)
    reading = replace(run.trained("actor", reserves=True), shape=LARGE, parameters=LARGE.parameters).probed()
    tiny = replace(small, policy=NOTHING)
    assert held(memory_plan(tiny, SHARED), "actor", "rank")["logits"] >= reading["logits"]
    assert held(memory_plan(tiny, SHARED), "actor", "rank")["gather bucket"] == reading["gather bucket"]
    on_cpu = Seats((), ((),), (0,) * 8, False, "shm", 10**12)
    assert held(memory_plan(small, on_cpu), "start", "rank 0", "machine")["reference"] / GB == pytest.approx(
        3.7, abs=0.05
    )


def test_the_worst_of_several_shortages_is_told():
    seats = replace(SHARED, devices=(80 * 10**9,) * 7 + (70 * 10**9,), host=10**9)
    plan = memory_plan(asked("learn.offload=sleep"), seats)
    missing = {
        (place, phase): plan.total(place, phase) - (there if place == HOST else int(0.96 * there))
        for place, there in plan.there.items()
        for phase in PHASES
    }
    shortage = plan.shortage()
    assert shortage is not None
    assert (shortage.place, shortage.phase) == max(missing, key=missing.__getitem__) == ("host", "generate")
    assert shortage.wanted - shortage.there == max(missing.values())
    assert plan.places == (*(f"GPU {number}" for number in range(8)), HOST)


def test_an_engine_has_the_share_of_its_smallest_gpu_and_wants_room_for_one_sequence_on_each():
    devices = (80 * 10**9, 60 * 10**9, *SHARED.devices[2:])
    shortage = memory_plan(asked("rollout.gpu_memory=0.25"), replace(SHARED, devices=devices)).engine_shortage
    assert shortage is not None
    assert (shortage.phase, shortage.place, shortage.there) == ("generate", "GPU 0", 15 * 10**9)
    assert shortage.wanted == LARGE.parameters + WORKSPACE + 96 * 1024 * (2048 + 16384)


def test_a_rank_starts_with_what_loading_takes_and_sends_with_what_is_larger_of_probe_and_transfer():
    settings = ["learn.kl_coef=0.1", "learn.offload=sleep"]
    plan, model = memory_plan(asked(*settings), SHARED), asked(*settings).trained("actor", reserves=True)
    own = {"own": GPU_OWN}
    assert held(plan, "start", "rank") == model.made() | {"reference": 2 * LARGE.parameters // 8} | own
    assert not [use for use in plan.at(HOST, "start") if use.process.startswith("rank")]
    assert held(plan, "sync", "rank") == {"parameters": 2 * LARGE.parameters // 8, **model.probed(), **own}
    short = ["model.prompt_tokens=64", "model.response_tokens=64", "learn.micro_batch_tokens=128"]
    sending = held(memory_plan(asked(*settings, *short), SHARED), "sync", "rank")
    assert sending["transfer buffer"] == sending["gather bucket"] == 2 * 152064 * 5120  # a tensor of more than 1 GiB


@pytest.mark.parametrize(("backend", "rank", "engine"), [("ipc", 1.557, 1.557), ("nccl", 4.778, 3.705), ("shm", 0, 0)])
def test_weights_on_their_way_need_room_at_either_end(backend, rank: float, engine: float):
    """By ipc a buffer for the largest tensor, 152,064 x 5,120 numbers, and a copy; over nccl buffers of 1 GiB."""
    short = ["model.prompt_tokens=64", "model.response_tokens=64", "learn.micro_batch_tokens=128"]
    seats = replace(SHARED, backend=backend, turns=backend == "ipc")
    plan = memory_plan(asked(*short, "learn.offload=sleep"), seats)
    for process, size in (("rank", rank), ("engine", engine)):
        assert held(plan, "sync", process).get("transfer buffer", 0) / GB == pytest.approx(size, abs=1e-3)
    assert "transfer buffer" not in held(plan, "generate", "engine")
    few = memory_plan(replace(asked(), policy=SMALL), replace(seats, engines=((0,),)))
    assert held(few, "sync", "engine")["transfer buffer"] <= 2 * SMALL.parameters


def test_without_a_critic_there_is_no_phase_of_its_own():
    assert memory_plan(asked(), SHARED).at("GPU 0", "critic") == ()
    assert on_cpu().at(MACHINE, "critic") == ()


def test_a_gpu_reserves_a_bucket_that_a_cpu_fills_as_it_comes():
    small = 4 * trained_parameters(SMALL.decoder, SMALL.parameters, 16)
    adapters = ["learn.lora_rank=16", "learn.ranks=8", "learn.zero_stage=3"]
    on_gpu = held(memory_plan(asked(*adapters), SHARED), "generate", "rank")
    assert on_gpu["gradient bucket"] == 2 * 10**9
    assert held(on_cpu(*adapters), "generate", "rank 0", MACHINE)["gradient bucket"] == small


def test_on_a_gpu_of_which_nobody_knows_the_bytes_an_engine_has_a_cache_for_all_its_sequences():
    run = asked("rollout.max_sequences=4")
    assert kv_room(run, 0) == 96 * 1024 * 4 * (2048 + 16384)


# --- on a CPU -----------------------------------------------------------------------------------------------


def on_cpu(*more: str, host: int = 10**12, **given):
    cfg = load_config(None, ["run.device=cpu", *more])
    return memory_plan(PlannedRun(cfg, SMALL, **given), Seats((), ((),), (0,) * cfg.learn.ranks, False, "shm", host))


def test_processes_of_a_machine_without_gpus_share_its_memory():
    plan = on_cpu("learn.ranks=2", "learn.zero_stage=3")
    assert plan.places == (MACHINE,)
    assert [use.process for use in plan.at(MACHINE, "actor")] == ["engine 0", "rank 0", "rank 1"]
    copied = [dict(use.items).get("transfer buffer", 0) for use in plan.at(MACHINE, "generate")]
    assert copied == [0, 2 * SMALL.parameters, 0]  # rank 0 alone keeps what the engine maps


def test_the_heap_of_a_rank_on_a_cpu_is_told_but_refuses_nothing():
    plan = on_cpu(engine=False)
    phases = ("generate", "sync", "actor")
    in_use = {p: sum(v for k, v in held(plan, p, "rank", MACHINE).items() if k != "heap") for p in phases}
    most = max(in_use.values())
    assert max(in_use, key=in_use.__getitem__) == "actor"
    assert {plan.total(MACHINE, phase) for phase in in_use} == {2 * most - RANK_OWN}
    for free, fits in ((most + 1, True), (most - 1, False)):
        assert (on_cpu(engine=False, host=free).shortage() is None) == fits


def test_kept_samples_need_no_engine_and_no_copy_of_the_weights():
    plan = on_cpu(engine=False)
    assert [use.process for use in plan.at(MACHINE, "generate")] == ["rank 0"]
    assert "transfer buffer" not in held(plan, "generate", "rank", MACHINE)
