"""Plain torch in the place of DeepSpeed, on one rank: enough for a trainer to take its steps in the test's process."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch


class PlainEngine:
    """A model with its optimizer. ``steps`` counts the optimizer's."""

    def __init__(self, model: Any, optimizer: Any, grad_clip: float) -> None:
        self.module, self.optimizer, self._clip = model, optimizer, grad_clip
        self.steps, self._norm = 0, 0.0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def set_gradient_accumulation_boundary(self, last: bool) -> None:
        """Nothing is partitioned."""

    def backward(self, loss: Any) -> None:
        loss.backward()

    def step(self) -> None:
        self._norm = torch.nn.utils.clip_grad_norm_(self.module.parameters(), self._clip).item()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.steps += 1

    def get_global_grad_norm(self) -> float:
        return self._norm


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainers that are made from here on train by plain torch, as the only rank."""
    fake: Any = ModuleType("deepspeed")
    fake.initialize = lambda model, optimizer, config: (PlainEngine(model, optimizer, config["gradient_clipping"]),)
    monkeypatch.setitem(sys.modules, "deepspeed", fake)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 1)
