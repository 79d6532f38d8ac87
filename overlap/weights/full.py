"""What the learner's side of a weight sync is made of: full named tensors, one bucket at a time, and a rank's sender.

    tensors = full_tensors(module, zero_stage)        every rank; may be iterated again and again
    sender = open_sender("shm", rank=rank, world=world)
    info = sender.prepare(tensors, version)           every rank; rank 0's is the info of the WeightUpdate
    sender.transmit(info)                             every rank, while the engine loads
    sender.chunk(first)                               every rank, where it comes in chunks: the next when one is loaded
    sender.retire(info)                               every rank, when it has loaded

Importing this module imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor

BUCKET_BYTES = 256 << 20
"""Gathered at once under ZeRO-3, bytes (at least one tensor)."""


@dataclass(frozen=True)
class TensorMeta:
    """Name, element type ("bfloat16") and full shape of a weight, known without gathering it."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Of the full tensor."""
        import torch

        return math.prod(self.shape) * int(getattr(torch, self.dtype).itemsize)


class FullTensors:
    """Full named tensors of a policy, one bucket in memory at a time; each ``iter`` is a fresh pass.

    Under ZeRO-3 a pass is collective: every rank makes it, to the end. Names are those of the Hugging Face
    checkpoint; a tensor that is used twice (tied embeddings) comes once. A tensor is valid until the next is asked for.
    """

    def __init__(self, module: Any, zero_stage: int) -> None:
        while hasattr(module, "module"):  # wrappers: DeepSpeed's, DDP
            module = module.module
        self._named = list(module.named_parameters())
        self.gathers = zero_stage == 3

    @cached_property
    def metadata(self) -> list[TensorMeta]:
        """What a pass yields, in its order; not collective."""
        return [
            TensorMeta(name, str(p.dtype).removeprefix("torch."), tuple(getattr(p, "ds_shape", p.shape)))
            for name, p in self._named
        ]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        if not self.gathers:
            yield from ((name, p.detach()) for name, p in self._named)
            return
        from deepspeed.runtime.zero import GatheredParameters

        for bucket in self._buckets():
            with GatheredParameters([p for _, p in bucket]):
                yield from ((name, p.detach()) for name, p in bucket)

    def _buckets(self) -> Iterator[list[tuple[str, Any]]]:
        bucket: list[tuple[str, Any]] = []
        used = 0
        for name, p in self._named:
            size = getattr(p, "ds_numel", p.numel()) * p.element_size()
            if bucket and used + size > BUCKET_BYTES:
                yield bucket
                bucket, used = [], 0
            bucket.append((name, p))
            used += size
        if bucket:
            yield bucket


def full_tensors(module: Any, zero_stage: int) -> FullTensors:
    """Full named tensors of what DeepSpeed trains (ZeRO stage 1, 2 or 3) or of a plain module (stage 0)."""
    return FullTensors(module, zero_stage)


class Sender(Protocol):
    """One rank's end of the transfer. See the top of this file for who calls what when."""

    def prepare(self, named_tensors: FullTensors, version: int) -> dict[str, Any]:
        """Make a version ready; on rank 0 the result is what the engine needs, on other ranks it is empty."""

    def transmit(self, info: dict[str, Any]) -> None:
        """Send while the engine receives; nothing for memory-based backends."""

    def chunk(self, first: bool) -> dict[str, Any] | None:
        """The next part, when the engine has loaded the last one; ``first`` begins anew. On rank 0 the result is what
        the engine needs; None when there is no more, and for backends that do not send in chunks.
        """

    def retire(self, info: dict[str, Any], *, loaded: bool = True) -> None:
        """The engine has loaded the version, or failed to."""

    def close(self) -> None:
        """Free everything; safe to call twice."""
