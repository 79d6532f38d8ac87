"""What DeepSpeed's layout comes to, in models of round numbers, by hand; and the sizes that it goes by."""

from __future__ import annotations

from dataclasses import replace

import pytest

from overlap.placement.activations import DecoderShape, activation_bytes
from overlap.placement.learner import BUCKET, CHUNK, CHUNKS, GATHER, LIVE, LOGITS, SUB_GROUP, Trained
from overlap.placement.shapes import ModelShape

N, TABLE = 4 * 10**9, 6 * 10**8  # parameters, and those of the output layer: more than a bucket
DECODER = DecoderShape(layers=10, hidden=4000, inner=10_000, queries=4000, keys=1000)
SHAPE = ModelShape(N, DECODER, vocabulary=150_000, largest=TABLE, tied=False)
WIDE = Trained(SHAPE, N, N, width=2, ranks=8, stage=3, tokens=1000, checkpointing=True, head=True, reserves=True)
FEW = replace(WIDE, shape=replace(SHAPE, largest=10**5), parameters=10**6, trained=10**6)


def model(stage: int, width: int = 2, *, of: Trained = WIDE, **more) -> Trained:
    return replace(of, stage=stage, width=width, **more)


@pytest.mark.parametrize(
    ("stage", "width", "parameters", "gradients", "bucket"),
    [(1, 2, 8, 16, 0), (1, 4, 16, 0, 0), (2, 2, 8, 0, 0), (2, 4, 16, 0, 0), (3, 2, 1, 2, 2), (3, 4, 2, 2, 2)],
)
def test_states_in_gb(stage: int, width: int, parameters: int, gradients: int, bucket: int):
    states = {"parameters": parameters, "gradients": gradients, "float32 master": 2, "Adam": 4}
    wanted = {name: size * 10**9 for name, size in (states | {"gradient bucket": bucket}).items()}
    assert model(stage, width).states() == wanted


@pytest.mark.parametrize(
    ("stage", "width", "made"),
    [
        (1, 2, {"gradients": 16, "float32 master": 2, "parameters": 8}),  # laid out
        (1, 4, {"parameters": 16, "loading": 16}),  # while all that learns is there twice
        (2, 2, {"parameters": 8, "loading": 8}),
        (3, 2, {"parameters": 1, "gradients": 2, "float32 master": 2, "gradient bucket": 2}),
    ],
)
def test_the_most_that_is_there_in_gb_until_a_model_is_made(stage: int, width: int, made: dict[str, int]):
    found = {name: size for name, size in model(stage, width).made().items() if size}
    assert found == {name: size * 10**9 for name, size in made.items()}


def test_what_sleeps_in_the_machines_memory_is_not_on_a_rank_in_gb():
    held = model(2, offloaded=True).here()
    assert {name: size for name, size in held.items() if size} == {"parameters": 8 * 10**9}
    assert model(1, offloaded=True).states()["gradients"] == 2 * 10**9


def test_a_model_is_loaded_by_buckets_of_which_a_cpu_makes_none_before_they_are_full():
    assert model(3, of=FEW, reserves=False).made() == {"parameters": 250_000, "loading": 2 * 10**6}  # read at once
    many = model(3, of=FEW, parameters=10**9, reserves=False)
    assert many.made()["loading"] == GATHER
    few = model(3, of=FEW, reserves=False)
    assert few.states()["gradient bucket"] == 4 * 10**6
    assert "gradient bucket" not in few.made()


def test_a_pass_holds_activations_the_gradients_before_it_and_what_is_gathered():
    kept = activation_bytes(DECODER, 1000, width=2, checkpointing=True)
    held = {"activations": kept, "a layer's backward": 2 * 1000 * (3 * 10_000 + 4 * 4000)}
    assert model(3).moments()[0] == held | {
        "gradients": 0, "gradient bucket": 4 * BUCKET, "gather bucket": 2 * LIVE
    }  # fmt: skip
    assert model(2).moments()[0] == held | {"gradients": N // 2, "gradient bucket": 8 * BUCKET}
    assert model(1).moments()[0] == held | {"gradients": 2 * N, "gradient bucket": 0}
    few = model(2, of=FEW, reserves=False).moments()[0]
    assert (few["gradients"], few["gradient bucket"]) == (4 * 10**6 // 8, 0)
    assert model(3, of=FEW).moments()[0]["gradient bucket"] == 0
    assert model(3, of=FEW).moments()[0]["gather bucket"] == 2 * 10**6


def test_the_output_layer_holds_logits_and_its_gradient_in_float32_where_there_are_blocks():
    block, inputs = 2 * 1000 * 150_000, 1000 * 4000 * 2
    assert model(3).moments()[1] == {
        "activations": 10 * inputs + 3 * inputs, "gradients": 0, "gradient bucket": 0,
        "logits": block + CHUNKS[True] + 2 * TABLE, "gather bucket": 2 * LIVE,
    }  # fmt: skip
    rows = LOGITS // 300_000
    assert model(3, tokens=5000).moments()[1]["logits"] == 2 * rows * 150_000 + CHUNKS[True] + (4 + 4) * TABLE
    assert model(3, 4, tokens=5000).moments()[1]["logits"] == 4 * rows * 150_000 + CHUNKS[True] + (4 + 4) * TABLE
    kept = model(3, checkpointing=False).moments()[1]["activations"]
    assert kept == activation_bytes(DECODER, 1000, width=2, checkpointing=False) + 3 * inputs
    assert model(3, trained=10**6).moments()[1]["logits"] == block + CHUNKS[True]  # adapters: it does not learn
    assert model(3, of=FEW, tokens=1).moments()[1]["gather bucket"] == 2 * TABLE
    critic = model(3, head=False).moments()[1]
    assert (critic["values"], "logits" in critic) == (8 * 1000 * 4000, False)


def test_gradients_on_their_way_are_there_twice_and_the_largest_tensor_alone():
    single = (4 + 2) * TABLE
    assert model(3).moments()[2] == {"gradients": 0, "gradient bucket": single, "gather bucket": 2 * LIVE}
    assert model(2).moments()[2] == {"gradients": N // 2, "gradient bucket": single + 4 * BUCKET}
    assert model(1).moments()[2] == {"gradients": 2 * N}
    assert model(1, 4).moments()[2] == {"gradients": 4 * N, "gradient bucket": (4 + 4) * TABLE + 4 * BUCKET}
    scattered = model(3, of=FEW, reserves=False).moments()[2]["gradient bucket"]
    assert scattered == 4 * 10**6 + 4 * 10**6 // 8
    small = model(3, shape=replace(SHAPE, largest=BUCKET)).moments()[2]["gradient bucket"]
    assert small == 4 * BUCKET


def test_an_optimizer_step_under_zero_3_copies_the_gradients_of_a_part():
    assert model(3).moments()[3] == {"gradients' copy": 4 * N // 8}
    assert model(3, ranks=2).moments()[3] == {"gradients' copy": 4 * (SUB_GROUP + TABLE // 2)}
    assert model(2).moments()[3] == {"gradients": 4 * N // 8}


def test_a_probe_keeps_nothing_and_gathers_the_output_layer():
    held = {"activations": 2 * 1000 * (3 * 10_000 + 4 * 4000), "logits": 2 * 1000 * 150_000 + CHUNKS[True]}
    assert model(2).probed() == held
    assert model(3).probed() == held | {"gather bucket": 2 * LIVE}
    assert model(2, tokens=10**6).probed()["logits"] == LOGITS + CHUNKS[True]
    assert model(3, of=FEW).probed()["gather bucket"] == 2 * TABLE


@pytest.mark.e2e  # DeepSpeed and vLLM are imported
def test_sizes_are_those_that_deepspeed_the_output_layer_and_the_transfers_go_by():
    pytest.importorskip("torch")
    from overlap.learner import head
    from overlap.weights.full import BUCKET_BYTES

    zero = pytest.importorskip("deepspeed.runtime.zero.config").DeepSpeedZeroConfig(stage=3)
    assert (zero.reduce_bucket_size, zero.max_live_parameters, zero.sub_group_size) == (BUCKET, LIVE, SUB_GROUP)
    assert (head.BLOCK_BYTES, BUCKET_BYTES) == (LOGITS, GATHER)
    assert {False: 3 * head.CHUNK_BYTES, True: 3 * head.GPU_CHUNK_BYTES} == CHUNKS
    from overlap.weights.ipc import CHUNK_BYTES

    assert CHUNK == CHUNK_BYTES
