"""What a pass keeps for its backward pass: by formula, as measured, and with layers computed again."""

from __future__ import annotations

from array import array

import pytest

from overlap.placement.activations import (
    DecoderShape,
    activation_bytes,
    decoder_shape,
    recomputes,
    trained_parameters,
)

TOKENS = 2048
QWEN_14B = DecoderShape(layers=48, hidden=5120, inner=13824, queries=5120, keys=1024)
SMOLLM2 = DecoderShape(layers=30, hidden=576, inner=1536, queries=576, keys=192)


@pytest.mark.parametrize(("shape", "rank", "trained"), [(QWEN_14B, 32, 137_625_600), (SMOLLM2, 16, 4_884_480)])
def test_adapters_have_their_rank_times_the_widths_of_each_linear_layer(shape, rank, trained):
    assert trained_parameters(shape, 10**9, rank) == trained
    assert trained_parameters(shape, 10**9, 0) == 10**9


@pytest.mark.parametrize(
    ("how", "shape", "tokens", "width", "again"),
    [
        ("auto", SMOLLM2, 2048, 2, False),  # the default recipe
        ("auto", SMOLLM2, 8192, 2, False),
        ("auto", SMOLLM2, 8192, 4, True),
        ("auto", QWEN_14B, 20000, 2, True),
        ("never", QWEN_14B, 36864, 2, False),
        ("always", SMOLLM2, 1, 2, True),
    ],
)
def test_layers_are_computed_again_where_their_activations_are_large(how, shape, tokens, width, again):
    assert recomputes(how, shape, tokens, width=width) == again


def micro_batch(tokens, rows):
    from overlap.learner.micro_batch import MicroBatch, PromptGroup, Response

    half = tokens // rows // 2
    response = Response(array("i", [n % 200 for n in range(half + 1)]), array("f", [-5.0] * (half + 1)), 1.0)
    return MicroBatch(tuple(PromptGroup(response.tokens[:half], (response,)) for _ in range(rows)))


@pytest.fixture(scope="module")
def passed(tmp_path_factory):
    """(number type, how) → peak bytes, bytes that the forward pass has left, log-probs, gradient at ``TOKENS``."""
    torch = pytest.importorskip("torch")
    from live_bytes import LiveBytes
    from tiny_policy import make_tiny_policy

    from overlap.config.learn import LearnConfig
    from overlap.learner.model import checkpoint_layers, choose_attention, load_policy
    from overlap.learner.tensors import to_tensors

    path = make_tiny_policy(tmp_path_factory.mktemp("policy"), layers=8)
    cpu, found = torch.device("cpu"), {}
    for dtype, how in (("float32", "never"), ("float32", "always"), ("bfloat16", "never"), ("bfloat16", "always")):
        model = load_policy(path, dtype=getattr(torch, dtype), temperature=1.0, device=cpu)
        choose_attention(model, cpu)
        assert checkpoint_layers(model, LearnConfig(recompute=how)) == (how == "always")
        tensors = to_tensors(micro_batch(TOKENS, rows=8))
        with LiveBytes() as live:
            logprobs, _ = model(tensors)
            left = live.live
            logprobs.sum().backward()
        gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
        found[dtype, how] = live.peak, left, logprobs.detach(), gradient, decoder_shape(model.policy.config.to_dict())
    return found


@pytest.mark.parametrize(("dtype", "width"), [("float32", 4), ("bfloat16", 2)])
def test_layers_computed_again_take_the_foretold_share_of_the_memory_and_change_no_gradient(passed, dtype, width):
    import torch

    kept, again = passed[dtype, "never"], passed[dtype, "always"]
    assert again[0] <= 0.35 * kept[0]
    assert torch.equal(again[2], kept[2])
    assert torch.equal(again[3], kept[3])
    foretold = [activation_bytes(kept[4], TOKENS, width=width, recomputes=each) for each in (False, True)]
    assert kept[1] == pytest.approx(foretold[0], rel=0.1)
    assert again[0] == pytest.approx(foretold[1], rel=0.3)
