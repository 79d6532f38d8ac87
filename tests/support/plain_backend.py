"""The learner's backend in plain torch, on one rank: enough for a trainer to take its steps in the test's process."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch

from overlap.weights.full import full_tensors


class PlainModel:
    """A stand-in for ``ZeroModel``. ``steps`` counts those of the optimizer."""

    def __init__(self, module: Any, optimizer: Any = None, grad_clip: float = 1.0) -> None:
        self.module, self.optimizer, self._clip = module, optimizer, grad_clip
        self.steps = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def backward(self, loss: Any, *, last: bool) -> None:
        loss.backward()

    def step(self, rate: float) -> float:
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        norm = torch.nn.utils.clip_grad_norm_(self.module.parameters(), self._clip).item()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.steps += 1
        return norm

    def master(self, parameter: Any) -> Any:
        return parameter.detach().float()

    def full_tensors(self, adapters: Any) -> Any:
        return full_tensors(self.module.policy, 0, adapters)


class PlainBackend:
    """A stand-in for ``ZeroBackend`` that partitions nothing."""

    def __init__(self, grad_clip: float = 1.0) -> None:
        self._clip = grad_clip

    def load(self, load: Any, dtype: Any) -> Any:
        return load()

    def gathered(self, module: Any) -> Any:
        return nullcontext()

    def train(self, module: Any, optimizer: Any) -> PlainModel:
        return PlainModel(module, optimizer, self._clip)

    def freeze(self, module: Any) -> Any:
        return module


def plain_trainer(
    monkeypatch: pytest.MonkeyPatch, cfg: Any, policy: Any, total_updates: int, reference: Any = None
) -> Any:
    """The trainer of an only rank; a critic starts from the policy, too."""
    from overlap.learner.trainer import RankTrainer

    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 1)
    backend: Any = PlainBackend(cfg.learn.grad_clip)
    return RankTrainer(cfg, policy, policy, torch.device("cpu"), total_updates, backend, reference)
