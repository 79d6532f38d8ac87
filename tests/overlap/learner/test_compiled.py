"""Compiled parts of a policy against the same, operation by operation; without kernels, which take g++ a minute."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from overlap.learner import compiled
from overlap.learner.compiled import compile_parts
from overlap.learner.head import LogprobHead
from overlap.learner.model import Policy, load_policy, plain

CPU = torch.device("cpu")
ALL = "5 norms, 2 gated layers, 1 rotary embeddings, log-probs"


@pytest.fixture(autouse=True)
def afresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is left of what other tests have compiled, nor in a family's module."""
    from transformers.models.llama import modeling_llama

    monkeypatch.setattr(compiled, "BACKEND", "aot_eager")
    monkeypatch.setattr(compiled, "worth_compiling", lambda device: True)
    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", modeling_llama.apply_rotary_pos_emb)
    known = compiled._made, compiled._fault

    def forget() -> None:
        for made in known:
            made.cache_clear()
        torch._dynamo.reset()
        counters.clear()

    forget()
    yield
    forget()


def load(path: Path) -> Policy:
    return load_policy(path, dtype=torch.float32, temperature=0.7, device=CPU)


def one_pass(model: Policy, length: int) -> list[torch.Tensor]:
    """Log-probs, entropies and all gradients."""
    found = model(plain([(7 * i * i + 3 * i + 1) % 259 for i in range(length)], CPU), True)
    model.zero_grad()
    (found[0].sum() + 0.3 * found[1].sum()).backward()
    return [*(part.detach() for part in found), *(p.grad.clone() for p in model.parameters())]


def test_log_probs_and_gradients_are_those_of_the_reference_and_no_length_is_compiled_anew(tiny: Path) -> None:
    lengths = (40, 57, 90)
    model = load(tiny)
    wanted = {length: one_pass(model, length) for length in lengths}
    model = load(tiny)
    assert compile_parts(model, CPU) == ALL
    graphs = []
    for length in lengths:
        for ours, theirs in zip(one_pass(model, length), wanted[length], strict=True):
            assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-5)
        graphs.append(counters["stats"]["unique_graphs"])
    assert graphs[0] == graphs[1] == graphs[2] > 4


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("entropy", [False, True])
def test_the_output_layer_gives_and_teaches_the_same_over_several_blocks(
    monkeypatch: pytest.MonkeyPatch, bias: bool, entropy: bool
) -> None:
    monkeypatch.setattr("overlap.learner.head.BLOCK_BYTES", 2 * 17 * 5)
    torch.manual_seed(0)
    layer, targets = nn.Linear(5, 17, bias=bias), torch.randint(0, 17, (13,))
    mine, theirs = LogprobHead(layer, 0.7), LogprobHead(layer, 0.7)
    mine.kernels = compiled.KERNELS
    found = []
    for head in (mine, theirs):
        x = torch.linspace(-1, 1, 13 * 5).view(13, 5).requires_grad_()
        layer.zero_grad()
        logprobs, entropies = head(x, targets, entropy)
        (logprobs.sum() + entropies.square().sum()).backward()
        found.append([logprobs, entropies, x.grad, *(p.grad.clone() for p in layer.parameters())])
    for ours, other in zip(*found, strict=True):
        assert torch.allclose(ours, other, atol=1e-6)


class ShiftedNorm(nn.Module):
    """As Gemma has it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.full((8,), 0.5)), 1e-6

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * (1 + self.weight)


class Smooth(nn.Module):
    """Another activation than SwiGLU's."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(nn.functional.gelu(self.gate_proj(x)) * self.up_proj(x))


def test_what_a_family_computes_otherwise_stays_its_own() -> None:
    own = nn.Sequential(ShiftedNorm(), Smooth(), nn.LayerNorm(8))
    with torch.no_grad():
        own[1].gate_proj.bias += 2
    assert (compiled._norms(own), compiled._gated(own)) == (0, 0)
    assert not any("forward" in vars(module) for module in own)
    assert not compiled._turns(lambda q, k, cos, sin: (q * cos.unsqueeze(1), k * cos.unsqueeze(1)))
    assert not compiled._turns(lambda q, k, angles: (q, k))


def test_a_function_of_a_family_keeps_the_calls_that_are_not_known(tiny: Path) -> None:
    compile_parts(load(tiny), CPU)
    turn = sys.modules["transformers.models.llama.modeling_llama"].apply_rotary_pos_emb
    q, k, angles = torch.randn(1, 3, 4, 8), torch.randn(1, 3, 2, 8), torch.randn(1, 3, 8)
    for ours, theirs in zip(
        turn(q, k, angles, angles, unsqueeze_dim=2), turn.own(q, k, angles, angles, 2), strict=True
    ):
        assert torch.equal(ours, theirs)


def test_on_a_cpu_nothing_is_compiled(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    model = load(tiny)
    assert compile_parts(model, CPU) == "nothing on cpu"
    assert not any("forward" in vars(module) for module in model.modules())


def test_where_a_compiler_is_missing_it_is_told(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise FileNotFoundError(2, "No such file or directory", "g++")

    monkeypatch.setattr(compiled, "BACKEND", broken)
    model = load(tiny)
    said = compile_parts(model, CPU)
    assert said.startswith("nothing, so steps are slower: torch.compile fails (")
    assert "g++" in said
    assert not any("forward" in vars(module) for module in model.modules())
