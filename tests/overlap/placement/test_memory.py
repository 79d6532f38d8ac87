"""Bytes by place, moment and item: by hand for models of round numbers, who is there when, and what an H200 had."""

from __future__ import annotations

from dataclasses import replace

import pytest
from shapes import LARGE, SMALL

from overlap.config.load import load_config
from overlap.placement.activations import DecoderShape, activation_bytes, trained_parameters
from overlap.placement.engine_memory import ASLEEP, cpu_kv_bytes, gpu_token_bytes, kv_room, token_bytes
from overlap.placement.memory import (
    CRITIC,
    GIB,
    GPU_OWN,
    HOST,
    LEARNING,
    MACHINE,
    SAMPLING,
    TRANSFER,
    held,
    memory_plan,
    rank_items,
)
from overlap.placement.planned_run import (
    CHUNK,
    GATHER,
    LIVE,
    SUB_GROUP,
    PlannedRun,
    Seats,
    Trained,
    transfer_bytes,
)
from overlap.placement.shapes import ModelShape, shape_of

GB = 10**9
N, TABLE = 4 * GB, 6 * 10**8  # parameters, and those of the output layer: more than a bucket
DECODER = DecoderShape(layers=10, hidden=4000, inner=10_000, queries=4000, keys=1000)
SHAPE = ModelShape(N, DECODER, vocabulary=150_000, largest=TABLE, tied=False)
WIDE = Trained(SHAPE, N, N, width=2, ranks=8, stage=3, tokens=1000, recomputes=True, head=True, on_gpu=True)
SHARED = Seats((80 * GB,) * 8, tuple((e, e + 1) for e in range(0, 8, 2)), tuple(range(8)), True, "ipc")
APART = replace(SHARED, engines=((0, 1),), ranks=tuple(range(2, 8)), turns=False, backend="nccl")
SETTINGS = ["learn.ranks=8", "learn.zero_stage=3", "rollout.tensor_parallel=2", "run.device=cuda"]
LONG = ["model.prompt_tokens=2048", "model.response_tokens=16384", "learn.micro_batch_tokens=18432"]


def asked(*more: str, critic: ModelShape | None = None, reference: ModelShape | None = None) -> PlannedRun:
    return PlannedRun(load_config(None, [*SETTINGS, *LONG, *more]), LARGE, critic, reference=reference)


@pytest.mark.parametrize(
    ("stage", "width", "weights", "gradients", "buckets"),
    [(1, 2, 8, 16, 0), (1, 4, 16, 0, 0), (2, 2, 8, 0, 0), (2, 4, 16, 0, 0), (3, 2, 1, 2, 2), (3, 4, 2, 2, 2)],
)
def test_states_between_two_steps_in_gb(stage: int, width: int, weights: int, gradients: int, buckets: int) -> None:
    states = {"weights": weights, "gradients": gradients, "master and Adam": 6, "ZeRO's buckets": buckets}
    assert replace(WIDE, stage=stage, width=width).states() == {name: size * GB for name, size in states.items()}


@pytest.mark.parametrize(
    ("stage", "width", "gradients"), [(1, 2, 4 * N + 2 * N), (1, 4, 4 * N), (2, 2, 4 * N // 8), (3, 2, 4 * N // 8)]
)
def test_a_pass_sums_gradients(stage: int, width: int, gradients: int) -> None:
    assert replace(WIDE, stage=stage, width=width, tokens=20_000).step()["gradients"] == gradients


def test_a_pass_holds_activations_with_a_layers_backward_or_the_logits_and_gathers_weights() -> None:
    long = replace(WIDE, tokens=200_000, head=False)
    kept = activation_bytes(DECODER, 200_000, width=2, recomputes=True)
    found = long.step()
    assert found["activations"] == kept + 2 * 200_000 * (3 * 10_000 + 4 * 4000)
    assert found["ZeRO's buckets"] == 2 * GB + 2 * GB + 2 * LIVE  # its own, a full one, and gathered weights
    short = replace(WIDE, stage=1, tokens=2000)
    assert short.step()["activations"] > 4 * TABLE  # the gradient of the output layer
    adapters = replace(short, trained=10**6)
    assert adapters.step()["activations"] < 4 * TABLE


def test_the_step_of_zero_3_copies_a_part_of_the_gradients() -> None:
    few = replace(WIDE, tokens=1, head=False, shape=replace(SHAPE, largest=0), parameters=1, ranks=2, on_gpu=False)
    assert few.step()["gradients"] == 4 * N // 2 + 4 * SUB_GROUP


@pytest.mark.parametrize(("stage", "numbers"), [(1, 4), (2, 0), (3, 0)])
def test_an_optimizer_on_the_host_leaves_gradients_on_the_gpu_of_zero_1_alone(stage: int, numbers: int) -> None:
    model = replace(WIDE, stage=stage, offloaded=True, tokens=20_000)
    assert model.step()["gradients"] == numbers * N
    assert "master and Adam" in model.states()
    assert not model.on_device()["master and Adam"]
    assert model.states()["gradients"] == 4 * N // 8


@pytest.mark.parametrize(
    ("backend", "largest", "engine", "buffers"),
    [
        ("shm", GB, True, 0),
        ("ipc", 10, True, CHUNK),
        ("ipc", 2 * CHUNK, False, 2 * CHUNK),
        ("nccl", 5, True, 2 * CHUNK + 5),
        ("nccl", 5, False, 3 * CHUNK + 5),
    ],
)
def test_buffers_of_a_transfer_hold_the_largest_tensor(backend: str, largest: int, engine: bool, buffers: int) -> None:
    assert transfer_bytes(backend, 30 * GB, largest, engine=engine) == buffers
    assert WIDE.gathered_whole() == 2 * TABLE > GATHER


@pytest.mark.promise("memory-plan")
@pytest.mark.parametrize(("stage", "used"), [(1, 35.97), (2, 38.90)])
def test_what_an_h200_had_in_use_in_a_step_is_within_15_percent_of_the_plan(stage: int, used: float) -> None:
    """docs/benchmarks.md: Qwen2.5-1.5B's shape, passes of 18,432 tokens, in GiB, CUDA's own among them."""
    shape = shape_of(
        {"vocab_size": 151936, "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28,
         "num_attention_heads": 12, "num_key_value_heads": 2, "tie_word_embeddings": True}
    )  # fmt: skip
    cfg = load_config(None, [*LONG, f"learn.zero_stage={stage}", "learn.recompute=always", "model.dtype=bfloat16"])
    seats = Seats((143_771 << 20,), ((0,),), (0,), True, "ipc")
    planned = sum(rank_items(PlannedRun(cfg, shape), LEARNING, seats)[0].values()) + GPU_OWN
    assert planned / GIB == pytest.approx(used, rel=0.15)


def test_who_takes_turns_sleeps_while_the_other_works() -> None:
    run = asked("learn.offload=sleep")
    gpu = held(run, SHARED)["GPU 0"]
    assert gpu[SAMPLING]["KV cache"] == kv_room(run, 80 * GB)
    assert gpu[SAMPLING]["weights"] == 2 * LARGE.parameters // 8  # back for a checkpoint
    assert "master and Adam" not in gpu[SAMPLING]
    assert (gpu[LEARNING]["workspace"], "KV cache" in gpu[LEARNING]) == (ASLEEP, False)
    assert gpu[LEARNING]["master and Adam"] == 12 * LARGE.parameters // 8
    assert gpu[TRANSFER]["engine weights"] == LARGE.parameters
    assert gpu[TRANSFER]["transfer buffers"] >= CHUNK
    assert held(asked(), SHARED)["GPU 0"][SAMPLING]["master and Adam"] == 12 * LARGE.parameters // 8
    apart = held(asked("learn.ranks=6"), APART)
    assert apart["GPU 0"][LEARNING]["KV cache"] > 0
    assert "KV cache" not in apart["GPU 2"][LEARNING]


@pytest.mark.parametrize(
    ("offload", "numbers"), [("none", 0), ("sleep", 2 + 12), ("cpu", 2 + 12 + 4)]
)  # bytes of a parameter: weights, master and Adam, gradients
def test_what_leaves_the_gpus_is_in_the_hosts_memory(offload: str, numbers: int) -> None:
    away = held(asked(f"learn.offload={offload}"), SHARED)[HOST][LEARNING]["offloaded states"]
    assert away == pytest.approx(numbers * LARGE.parameters, rel=1e-6)


def test_a_critic_has_a_moment_of_its_own_and_rests_in_the_policys() -> None:
    run = asked("learn.advantage=gae", "learn.offload=sleep", critic=LARGE)
    gpu = held(run, SHARED)["GPU 0"]
    assert gpu[CRITIC]["master and Adam"] == 12 * LARGE.trunk // 8
    assert gpu[LEARNING]["master and Adam"] == 12 * LARGE.parameters // 8
    assert gpu[CRITIC]["weights"] == 2 * LARGE.trunk // 8
    both = held(replace(run, cfg=run.cfg.replace({"learn.offload": "none"})), SHARED)["GPU 0"][LEARNING]
    assert both["master and Adam"] == 12 * LARGE.parameters // 8 + 12 * LARGE.trunk // 8


def test_a_reference_policy_is_counted_and_may_read_more_than_a_step_takes() -> None:
    kl = ["learn.kl_coef=0.1"]
    assert held(asked(*kl), SHARED)["GPU 0"][LEARNING]["reference"] == 2 * LARGE.parameters // 8
    teacher = replace(LARGE, parameters=3 * LARGE.parameters)
    run = asked(*kl, "learn.reference=teacher", "learn.zero_stage=2", reference=teacher)
    assert held(run, SHARED)["GPU 0"][LEARNING]["reference"] == 6 * LARGE.parameters
    assert "reference" not in held(asked(*kl, "learn.lora_rank=8"), SHARED)["GPU 0"][LEARNING]


def test_an_engine_that_takes_adapters_has_a_place_for_one_and_its_weights_on_the_host() -> None:
    adapters = 2 * trained_parameters(LARGE.decoder, LARGE.parameters, 12)
    alone, whole = asked("learn.lora_rank=12"), asked()
    assert (alone.sent[0], whole.sent[0]) == (adapters, 2 * LARGE.parameters)
    place = adapters * 16 // 12  # the next rank that vLLM has a place for
    assert kv_room(whole, 80 * GB) - kv_room(alone, 80 * GB) == place
    found = held(alone, SHARED)
    assert found["GPU 0"][SAMPLING]["adapter"] == place
    assert found[HOST][LEARNING]["sleeping weights"] == 8 * (LARGE.parameters + place)
    assert "sleeping weights" not in held(whole, SHARED)[HOST][LEARNING]


def test_on_a_machine_without_gpus_all_share_one_memory_and_heaps_may_double_what_ranks_hold() -> None:
    cfg = load_config(None, ["learn.ranks=2", "learn.zero_stage=3", "model.dtype=float32"])
    run = PlannedRun(cfg, SMALL)
    (need,) = memory_plan(run, Seats((), ((0,), (0,)), (0, 0), False, "shm", host=400 * GIB, copies=1))
    assert (need.place, need.free) == (MACHINE, 400 * GIB)
    assert need.items["engine weights"] == 2 * 4 * SMALL.parameters
    assert need.items["transfer buffers"] >= 2 * 4 * SMALL.parameters  # what engines map, and a copy that travels
    rank = max(sum(rank_items(run, moment)[0].values()) for moment in (TRANSFER, LEARNING))
    assert need.worst - need.total == 2 * rank
    assert need.missing < 0


def test_of_each_place_the_fullest_moment_is_told() -> None:
    for need in memory_plan(asked("learn.offload=sleep"), SHARED):
        moments = held(asked("learn.offload=sleep"), SHARED)[need.place]
        assert need.total == max(sum(items.values()) for items in moments.values())
        assert need.total == sum(moments[need.moment].values())


@pytest.mark.parametrize(("parts", "possible", "shares"), [(1, True, 1), (2, True, 2), (4, True, 2), (8, False, 2)])
def test_devices_beyond_the_key_heads_have_these_twice(parts: int, possible: bool, shares: int):
    assert SMALL.splits(parts) == possible
    run = PlannedRun(load_config(None, [f"rollout.tensor_parallel={parts}"]), SMALL)
    assert gpu_token_bytes(run) == token_bytes(run.cfg, SMALL) // shares


@pytest.mark.parametrize(
    ("settings", "width"),
    [
        ("", 2),
        ("model.dtype=float32", 4),
        ("rollout.engine.kv_cache_dtype=auto model.dtype=float32", 4),
        ("rollout.engine.kv_cache_dtype=bfloat16 model.dtype=float32", 2),
        ("rollout.engine.kv_cache_dtype=fp8_e5m2", 1),
        ("rollout.engine.kv_cache_dtype=nvfp4", 1),
        ("rollout.engine.kv_cache_dtype=fp8 rollout.engine.kv_cache_dtype_skip_layers=['0']", 2),
    ],
)
def test_the_kv_cache_is_counted_in_the_type_that_it_has(settings: str, width: int):
    cfg = load_config(None, settings.split())
    numbers = 2 * SMALL.decoder.layers * SMALL.decoder.keys
    assert token_bytes(cfg, SMALL) == gpu_token_bytes(PlannedRun(cfg, SMALL)) == width * numbers


@pytest.mark.parametrize(
    ("free", "size", "blocks"),
    [(10**12, 32, 8 + 11 * 4), (2 * 20, 32, 8 + 20), (0, 32, 8 + 11), (0, 320, 8 + 2)],
    ids=["enough", "half", "one sequence", "larger blocks"],
)
def test_the_kv_cache_on_a_cpu_shrinks_to_half_of_what_is_free_but_holds_a_sequence(free: int, size: int, blocks: int):
    settings = ["model.prompt_tokens=64", "model.response_tokens=256", "rollout.max_sequences=4"]
    cfg = load_config(None, [*settings, f"rollout.engine.block_size={size}"])
    block = size * token_bytes(cfg, SMALL)
    assert cpu_kv_bytes(cfg, SMALL, free * block) == block * blocks
