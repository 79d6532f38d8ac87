"""The output layer without all logits at once, against autograd and finite differences."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from overlap.learner.head import LogprobHead


def head(dtype=torch.float64, bias=False, temperature=0.7, vocab=17, hidden=5):
    torch.manual_seed(0)
    layer = torch.nn.Linear(hidden, vocab, bias=bias, dtype=dtype)
    return layer, LogprobHead(layer, temperature)


def by_autograd(layer, x, targets, temperature):
    logp = (torch.nn.functional.linear(x, layer.weight, layer.bias) / temperature).log_softmax(-1)
    return logp.gather(-1, targets[:, None])[:, 0], -(logp.exp() * logp).sum(-1)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("entropy", [False, True])
@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_head_agrees_with_autograd_for_any_chunks(monkeypatch, bias, entropy, kept, temperature):
    monkeypatch.setattr("overlap.learner.head.CHUNK_BYTES", 4 * 17 * 3)
    monkeypatch.setattr("overlap.learner.head.BLOCK_BYTES", 1 << 30 if kept else 2 * 17 * 5)
    layer, mine = head(bias=bias, temperature=temperature)
    targets = torch.randint(0, 17, (11,))
    weights = torch.randn(2, 11, dtype=torch.float64)
    grads = []
    for compute in (lambda x: mine(x, targets, entropy), lambda x: by_autograd(layer, x, targets, temperature)):
        torch.manual_seed(1)
        x = torch.randn(11, 5, dtype=torch.float64, requires_grad=True)
        logprobs, entropies = compute(x)
        layer.zero_grad()
        (logprobs @ weights[0] + (entropies @ weights[1] if entropy else 0.0)).backward()
        grads.append([logprobs, x.grad, *[p.grad.clone() for p in layer.parameters()]])
        grads[-1] += [entropies] if entropy else []
    for ours, theirs in zip(*grads, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-12)


def test_a_frozen_output_layer_costs_no_gradient_and_gives_the_same_one_to_what_is_below():
    hidden, targets = torch.randn(9, 8), torch.arange(9)
    grads, costs = [], []
    for frozen in (False, True):
        layer, mine = head(torch.float32, bias=True, vocab=20, hidden=8)
        layer.requires_grad_(not frozen)
        below = hidden.clone().requires_grad_()
        with FlopCounterMode(display=False) as counter:
            mine(below, targets)[0].sum().backward()
        grads.append(below.grad)
        costs.append(counter.get_total_flops())
        assert (layer.weight.grad is None) == (layer.bias.grad is None) == frozen
    assert torch.equal(*grads)
    assert costs == [3 * 2 * 9 * 8 * 20, 2 * 2 * 9 * 8 * 20]
