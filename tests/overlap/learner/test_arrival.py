"""How much of a step comes to the engine: by hand, and as rounding has it. Steps are as large as those of Adam."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from responses import some_groups

from overlap.config.fields import Config, ModelConfig
from overlap.config.learn import LearnConfig
from overlap.learner import arrival
from overlap.learner.arrival import ArrivalProbe, applied_share
from overlap.weights.full import LowRank

SIZE, RANK = 256, 16


class Masters:
    """A trained model of one matrix, which it rounds to ``dtype``, with the optimizer's float32 weights."""

    def __init__(self, dtype: torch.dtype, lora_rank: int) -> None:
        made = torch.Generator().manual_seed(0)
        down = (2 * torch.rand(RANK, SIZE, generator=made) - 1) / SIZE**0.5  # as peft begins
        weight = 0.1 * torch.randn(SIZE, SIZE, generator=made)  # as in a small policy
        whole = {"weight": weight, "down": down, "up": torch.zeros(SIZE, RANK)}
        rounded = {name: torch.nn.Parameter(tensor.to(dtype)) for name, tensor in whole.items()}
        rounded["weight"].requires_grad_(not lora_rank)
        self.trained = [p for name, p in rounded.items() if (name == "weight") != bool(lora_rank)]
        self._masters = {id(p): p.detach().float().clone() for p in self.trained}
        self.adapters = {"layer.weight": LowRank(rounded["down"], rounded["up"], 2.0)} if lora_rank else {}
        names = [("layer.base_layer.weight", rounded["weight"])]
        names += [("a", rounded["down"]), ("b", rounded["up"])] if lora_rank else []
        self.module = SimpleNamespace(policy=SimpleNamespace(named_parameters=lambda: names))

    def master(self, parameter: Any) -> torch.Tensor:
        return self._masters[id(parameter)]

    def step(self, lr: float, number: int) -> None:
        made = torch.Generator().manual_seed(number)
        with torch.no_grad():
            for p in self.trained:
                self.master(p).sub_(lr * torch.randn(p.shape, generator=made).sign())
                p.copy_(self.master(p))


def ten_steps(dtype: torch.dtype, lr: float = 1e-5, **learn: Any) -> tuple[list[float], float]:
    """The share of each step, and that of all ten together."""
    name: Any = str(dtype).removeprefix("torch.")
    cfg = Config(model=ModelConfig(dtype=name), learn=LearnConfig(**learn))
    model = Masters(dtype, cfg.learn.lora_rank)
    probe = ArrivalProbe(model, model.adapters, cfg)  # type: ignore[arg-type]
    readings = [probe.read()]
    for number in range(10):
        model.step(lr, number)
        readings.append(probe.read())
    shares = [applied_share(*pair)["sync/applied_share"] for pair in pairwise(readings)]
    return shares, applied_share(readings[0], readings[-1])["sync/applied_share"]


def test_the_share_is_that_of_the_change_along_itself() -> None:
    before = [(torch.zeros(1, 2), torch.zeros(1, 2))]
    change = torch.tensor([[3.0, 4.0]])
    for sent, share in ((change, 1.0), (0.5 * change, 0.5), (torch.tensor([[-4.0, 3.0]]), 0.0), (2 * change, 2.0)):
        assert applied_share(before, [(change, sent)]) == {"sync/applied_share": share}
    assert applied_share(before, before) == {}


@pytest.mark.parametrize(
    ("dtype", "rank", "off"), [(torch.float32, 0, 2e-3), (torch.float32, RANK, 2e-3), (torch.bfloat16, RANK, 0.02)]
)
def test_in_float32_and_of_an_adapter_ten_small_steps_arrive(dtype: torch.dtype, rank: int, off: float) -> None:
    shares, ten = ten_steps(dtype, lora_rank=rank)
    assert ten == pytest.approx(1.0, abs=off)
    assert dtype == torch.bfloat16 or shares == pytest.approx([1.0] * 10, abs=off)


def test_of_a_policy_some_matrices_are_read_and_none_that_is_too_large(trainer: Any, monkeypatch: Any) -> None:
    made = trainer(lr=1e-2)
    matrices = dict(made._arrival._named)
    assert len(matrices) == arrival.MATRICES
    assert {p.dim() for p in matrices.values()} == {2}
    sizes = {p.numel() for p in made.model.module.policy.parameters() if p.dim() == 2}
    monkeypatch.setattr(arrival, "LARGEST", min(sizes))
    few = ArrivalProbe(made.model, {}, made.cfg)
    assert {p.numel() for _, p in few._named} == {min(sizes)}
    told = made.step(some_groups())
    assert told["sync/applied_share"] == pytest.approx(1.0)
    assert told["sync/bytes"] == sum(4 * p.numel() for p in made.model.module.policy.parameters())
