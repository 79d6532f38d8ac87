"""The learner's side of a weight sync: full named tensors, one bucket at a time, and a rank's sender.

    tensors = full_tensors(module, zero_stage)        every rank; may be iterated again and again
                                                      (with adapters: weights with those added to them)
    sender = open_sender("shm", rank=rank)
    info = sender.prepare(tensors)                    every rank; rank 0's is the info of the WeightUpdate
    sender.transmit()                                 every rank, while the engine loads
    sender.chunk(first)                               every rank, where it comes in chunks: the next when one is loaded
    sender.retire()                                   every rank, when it has loaded

Importing this module imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

BUCKET_BYTES = 256 << 20
"""Gathered at once under ZeRO-3, bytes (at least one tensor)."""
_ROWS_BYTES = 32 << 20  # of a weight that an adapter is added to, in float32
ADAPTER_SCALE = 2.0
"""alpha / r of adapters: the usual rule of twice the rank, so that one learning rate serves all ranks."""
_BASE = ".base_layer."  # peft's name for a layer that has adapters, within them


@dataclass(frozen=True)
class TensorMeta:
    """Name, element type ("bfloat16") and full shape of a weight, known without gathering it."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Bytes of the full tensor."""
        import torch

        return math.prod(self.shape) * int(getattr(torch, self.dtype).itemsize)


@dataclass(frozen=True)
class LowRank:
    """The product that an adapter (LoRA) adds to a weight [m, n]: ``scale`` * ``up`` [m, r] @ ``down`` [r, n]."""

    down: Any
    up: Any
    scale: float

    def named(self, weight: str) -> dict[str, Any]:
        """Both by the names that peft gives them in files, as the adapter of the weight of that name."""
        stem = f"base_model.model.{weight.removesuffix('.weight')}"
        return {f"{stem}.lora_A.weight": self.down, f"{stem}.lora_B.weight": self.up}

    def added_to(self, weight: Tensor) -> Tensor:
        """A new tensor: the sum, made in float32 (float64 stays) and rounded once to the weight's number type."""
        import torch

        weight, merged = weight.detach(), torch.empty_like(weight)
        wide = torch.promote_types(weight.dtype, torch.float32)
        up, down = self.up.detach().to(wide), self.down.detach().to(wide)
        rows = max(1, _ROWS_BYTES // (4 * weight.shape[1]))
        for start in range(0, len(weight), rows):
            at = slice(start, start + rows)
            merged[at] = (up[at] @ down).mul_(self.scale).add_(weight[at])
        return merged


def whole_shape(parameter: Any) -> tuple[int, ...]:
    """The shape of a parameter, partitioned or not."""
    return tuple(getattr(parameter, "ds_shape", parameter.shape))


class FullTensors:
    """Full named tensors of a policy, one bucket in memory at a time; each ``iter`` is a fresh pass.

    Under ZeRO-3 a pass is collective: every rank makes it, to the end. Names are those of the Hugging Face
    checkpoint; a tensor that is used twice (tied embeddings) comes once. A tensor is valid until the next one is drawn.
    ``adapters``, by the names of the weights that they belong to, come in these and not as tensors of their own.
    """

    def __init__(
        self, named: Sequence[tuple[str, Any]], zero_stage: int, adapters: Mapping[str, LowRank] | None = None
    ) -> None:
        self._adapters = dict(adapters or {})
        inside = {id(p) for adapter in self._adapters.values() for p in (adapter.down, adapter.up)}
        self.named = [(name.replace(_BASE, "."), p) for name, p in named if id(p) not in inside]
        """Names and parameters of what a pass yields."""
        self.gathers = zero_stage == 3

    @cached_property
    def metadata(self) -> list[TensorMeta]:
        """Metadata of the tensors that a pass yields, in their order; not collective."""
        return [TensorMeta(name, str(p.dtype).removeprefix("torch."), whole_shape(p)) for name, p in self.named]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for bucket in self._gathered():
            yield from ((name, self._merged(name, p)) for name, p in bucket)

    def take_part(self) -> None:
        """A pass for the other ranks' sake, which makes no tensor."""
        if self.gathers:
            for _ in self._gathered():
                pass

    def _merged(self, name: str, p: Any) -> Tensor:
        tensor: Tensor = p.detach() if name not in self._adapters else self._adapters[name].added_to(p)
        return tensor

    def _gathered(self) -> Iterator[list[tuple[str, Any]]]:
        """The parameters, as many at a time as are whole together."""
        if not self.gathers:
            yield self.named
            return
        from deepspeed.runtime.zero import GatheredParameters

        for bucket in self._buckets():
            with GatheredParameters([whole for name, p in bucket for whole in self._parts(name, p)]):
                yield bucket

    def _parts(self, name: str, p: Any) -> list[Any]:
        """All that a tensor is made of."""
        adapter = self._adapters.get(name)
        return [p] if adapter is None else [p, adapter.down, adapter.up]

    def _buckets(self) -> Iterator[list[tuple[str, Any]]]:
        bucket: list[tuple[str, Any]] = []
        used = 0
        for name, p in self.named:
            size = sum(getattr(q, "ds_numel", q.numel()) * q.element_size() for q in self._parts(name, p))
            if bucket and used + size > BUCKET_BYTES:
                yield bucket
                bucket, used = [], 0
            bucket.append((name, p))
            used += size
        if bucket:
            yield bucket


def full_tensors(module: Any, zero_stage: int, adapters: Mapping[str, LowRank] | None = None) -> FullTensors:
    """Full named tensors of what DeepSpeed trains (ZeRO stage 1, 2 or 3) or of a plain module (stage 0)."""
    return FullTensors(list(module.named_parameters()), zero_stage, adapters)


class WeightSender:
    """One rank's end of the transfer. The top of this file has the order of the calls."""

    def prepare(self, named_tensors: FullTensors) -> dict[str, Any]:
        """Make a version ready; on rank 0 the result is what the engine needs, on other ranks it is empty."""
        raise NotImplementedError

    def transmit(self) -> None:
        """Send while the engine receives; nothing for memory-based backends."""

    def chunk(self, first: bool) -> dict[str, Any] | None:
        """The next part, when the engine has loaded the last one; ``first`` begins anew. On rank 0 the result is what
        the engine needs; None when there is no more, and for backends that do not send in chunks.
        """
        return None

    def retire(self, loaded: bool = True) -> None:
        """The engine has loaded the version, or failed to."""

    def close(self) -> None:
        """Free everything; safe to call twice."""
