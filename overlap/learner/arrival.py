"""Share of a step's change that arrives in the engine: ``sync/applied_share``.

    float32 weights ──step──▶ their change, c            what the engine is sent ──step──▶ its change, a
    share = <a, c> / <c, c>

Of weights that are rounded to bfloat16 a change below half their spacing does not arrive, or does with those of later
steps: 1 is all of it, 0 nothing. It is measured on some rows of some matrices, the same in each step. An adapter counts
by the product that it adds to its weight.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from overlap.config.fields import Config
from overlap.learner.lora import alone
from overlap.weights.full import FullTensors, LowRank, whole_shape

if TYPE_CHECKING:
    from overlap.learner.zero.backend import ZeroModel

MATRICES, ROWS = 8, 64
LARGEST = 1 << 26
"""Numbers of a matrix that is looked at: it is whole in float32 for a moment."""

Rows = list[tuple[Tensor, Tensor]]
"""Pairs for each matrix, [ROWS, n] in float32: as the optimizer has it, and as the engine is sent it."""


class ArrivalProbe:
    """Reads the same rows of a trained policy again and again."""

    def __init__(self, model: ZeroModel, adapters: Mapping[str, LowRank], cfg: Config) -> None:
        self._model, self._stage, self._alone = model, cfg.learn.zero_stage, cfg.sends_adapter
        named = FullTensors(list(model.module.policy.named_parameters()), 0, adapters).named
        matrices = [(name, p) for name, p in named if name in adapters or _is_trained_matrix(p)]
        count = min(MATRICES, len(matrices))
        self._named = [matrices[(2 * i + 1) * len(matrices) // (2 * count)] for i in range(count)]
        self._adapters = {name: adapters[name] for name, _ in self._named if name in adapters}

    @torch.no_grad()
    def read(self) -> Rows:
        """Collective."""
        wanted = [self._optimizers(name, p) for name, p in self._named]
        return list(zip(wanted, self._sent(), strict=True))

    def _optimizers(self, name: str, p: Any) -> Tensor:
        if (adapter := self._adapters.get(name)) is None:
            return _rows(self._model.master(p))
        down, up = self._model.master(adapter.down), self._model.master(adapter.up)
        return adapter.scale * (_rows(up) @ down)

    def _sent(self) -> list[Tensor]:
        if not self._alone:
            return [_rows(tensor) for _, tensor in FullTensors(self._named, self._stage, self._adapters)]
        parts = [_rows(t) if ".lora_B." in name else t.float() for name, t in alone(self._adapters, self._stage)]
        scales = [adapter.scale for adapter in self._adapters.values()]
        return [scale * (up @ down) for scale, down, up in zip(scales, parts[::2], parts[1::2], strict=True)]


def _is_trained_matrix(p: Any) -> bool:
    shape = whole_shape(p)
    return bool(p.requires_grad) and len(shape) == 2 and math.prod(shape) <= LARGEST


def _rows(matrix: Tensor) -> Tensor:
    """A copy of as many rows as there are to be, evenly spread."""
    at = torch.arange(min(ROWS, len(matrix)), device=matrix.device) * len(matrix) // min(ROWS, len(matrix))
    return matrix.detach()[at].float()


def applied_share(before: Rows, after: Rows) -> dict[str, float]:
    """The share by two readings, by its name; nothing where nothing has changed."""
    wanted = arrived = 0.0
    for (old, sent_before), (new, sent) in zip(before, after, strict=True):
        change = (new - old).double()
        wanted += change.square().sum().item()
        arrived += (change * (sent - sent_before)).sum().item()
    return {"sync/applied_share": arrived / wanted} if wanted else {}
