"""Weight backend ``shm``: everything into one block of memory without a name, which the engine opens. One host only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from overlap.core.errors import LearnerError
from overlap.weights.copies import WeightMemory
from overlap.weights.full import FullTensors, TensorMeta, WeightSender

if TYPE_CHECKING:
    from torch import Tensor

_ALIGN = 64


class ShmSender(WeightSender):
    """Writes a version into one memory of rank 0, used again for the next. Other ranks only help to gather."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._memory: WeightMemory | None = None
        self._table: list[list[Any]] = []

    def prepare(self, named_tensors: FullTensors) -> dict[str, Any]:
        """Raises LearnerError when the tensors are not those of the version before."""
        if self._rank != 0:
            named_tensors.take_part()
            return {}
        memory = self._memory = self._memory or self._allocated(named_tensors.metadata)
        self._write(named_tensors, memory)
        return {"path": memory.path, "size": memory.size, "tensors": self._table}

    def _allocated(self, metadata: Iterable[TensorMeta]) -> WeightMemory:
        size = 0
        for meta in metadata:
            self._table.append([meta.name, meta.dtype, list(meta.shape), size])
            size += -(-meta.bytes // _ALIGN) * _ALIGN
        return WeightMemory(size)

    def _write(self, named_tensors: Iterable[tuple[str, Tensor]], memory: WeightMemory) -> None:
        import torch

        rows = iter(self._table)
        for name, tensor in named_tensors:
            expected, dtype, shape, offset = next(rows, ("nothing more", "", [], 0))
            if (name, list(tensor.shape)) != (expected, shape) or tensor.dtype != getattr(torch, dtype):
                raise LearnerError(f"weights to send changed: {name} came where {expected} was sent before")
            target = torch.frombuffer(memory.memory, dtype=tensor.dtype, count=tensor.numel(), offset=offset)
            target.copy_(tensor.reshape(-1))
        if (row := next(rows, None)) is not None:
            raise LearnerError(f"weights to send changed: {row[0]} is missing")

    def close(self) -> None:
        if self._memory is not None:
            self._memory.close()
            self._memory = None  # unmapped when its last tensor goes


def open_sender(
    backend: str, *, rank: int, engine_devices: int = 1, read: bool = True, address: str = "127.0.0.1"
) -> WeightSender:
    """The sending end of ``backend``: nccl meets the engine's devices at ``address``, for ipc an engine on the GPU of
    the rank ``read``s. Imports vLLM for ``nccl`` only.
    """
    if backend == "shm":
        return ShmSender(rank)
    if backend == "ipc":
        from overlap.weights.ipc import Device, IpcSender

        return IpcSender(rank, Device(), read=read)
    from overlap.weights.nccl import NcclSender

    return NcclSender(rank, 1 + engine_devices, address)
