"""Weight backend ``shm``: everything into one block of memory without a name (a memfd), so nothing can be left behind.

The engine reads it through ``/proc/<pid>/fd``. One host only.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from overlap.core.errors import LearnerError
from overlap.weights.full import FullTensors, TensorMeta, WeightSender

if TYPE_CHECKING:
    from torch import Tensor

_ALIGN = 64


class ShmSender:
    """Writes a version into one memfd of rank 0, used again for the next. Other ranks only help to gather."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._fd = -1
        self._memory: mmap.mmap | None = None
        self._table: list[list[Any]] = []

    def prepare(self, named_tensors: FullTensors, version: int) -> dict[str, Any]:
        """Raises LearnerError when the tensors are not those of the version before."""
        if self._rank != 0:
            named_tensors.take_part()
            return {}
        if self._memory is None:
            self._allocate(named_tensors.metadata)
        self._write(named_tensors)
        path = f"/proc/{os.getpid()}/fd/{self._fd}"
        return {"path": path, "size": len(self._memory or b""), "tensors": self._table}

    def _allocate(self, metadata: Iterable[TensorMeta]) -> None:
        size = 0
        for meta in metadata:
            self._table.append([meta.name, meta.dtype, list(meta.shape), size])
            size += -(-meta.bytes // _ALIGN) * _ALIGN
        self._fd = os.memfd_create("overlap-weights", os.MFD_CLOEXEC)
        os.ftruncate(self._fd, max(size, 1))
        self._memory = mmap.mmap(self._fd, max(size, 1))

    def _write(self, named_tensors: Iterable[tuple[str, Tensor]]) -> None:
        import torch

        rows = iter(self._table)
        for name, tensor in named_tensors:
            expected, dtype, shape, offset = next(rows, ("nothing more", "", [], 0))
            if (name, list(tensor.shape)) != (expected, shape) or tensor.dtype != getattr(torch, dtype):
                raise LearnerError(f"weights to send changed: {name} came where {expected} was sent before")
            count = tensor.numel()
            target = torch.frombuffer(self._memory, dtype=tensor.dtype, count=count, offset=offset)
            target.copy_(tensor.reshape(-1))
        if (row := next(rows, None)) is not None:
            raise LearnerError(f"weights to send changed: {row[0]} is missing")

    def transmit(self, info: dict[str, Any]) -> None:
        """The memory is the transfer."""

    def chunk(self, first: bool) -> dict[str, Any] | None:
        """All of it is in the memory."""
        return None

    def retire(self, info: dict[str, Any], *, loaded: bool = True) -> None:
        """The memory is kept for the next version."""

    def close(self) -> None:
        self._memory = None  # unmapped when its last tensor goes
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def open_sender(
    backend: str,
    *,
    rank: int,
    engine_devices: int = 1,
    read: bool = True,
    address: str = "127.0.0.1",
    port: int = 0,
) -> WeightSender:
    """The sending end of ``backend``; nccl meets the engine's devices at ``address`` and ``port`` (0: a free one), and
    for ipc an engine on the rank's GPU ``read``s.

    Imports vLLM for ``nccl`` only. Raises LearnerError for a backend that is not known.
    """
    if backend == "shm":
        return ShmSender(rank)
    if backend == "ipc":
        from overlap.weights.ipc import Device, IpcSender

        return IpcSender(rank, Device(), read=read)
    if backend == "nccl":
        from overlap.weights.nccl import NcclSender

        return NcclSender(rank, 1 + engine_devices, address, port)
    raise LearnerError(f"weight backend {backend!r} is not known: use shm, ipc or nccl")
