"""The learner's side of a weight sync: ZeRO shards → full named tensors → the engine.

    tensors = full_tensors(engine, zero_stage)        every rank; may be iterated again and again
    sender = open_sender("shm", rank=rank, world=world)
    info = sender.prepare(tensors, version)           every rank; rank 0's is the info of the WeightUpdate
    sender.transmit(info)                             every rank, while the engine loads
    sender.retire(info)                               every rank, when it has loaded

``shm`` writes everything into one block of memory without a name (a memfd), so nothing can be left behind; the engine
reads it through ``/proc/<pid>/fd``. ``nccl`` and ``ipc`` (``weights_cuda``) go through vLLM's own trainer engines.
Importing this module imports no torch.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast, get_args

from overlap.errors import LearnerError

if TYPE_CHECKING:
    from torch import Tensor

Backend = Literal["shm", "ipc", "nccl"]

BUCKET_BYTES = 256 << 20
"""Gathered at once under ZeRO-3, bytes (at least one tensor)."""
_ALIGN = 64


def choose_backend(wanted: str, devices: int, devices_wanted: int) -> Backend:
    """What ``rollout.weight_backend`` means on a machine with ``devices`` GPUs.

    ``devices_wanted`` is what engine and learner want together. "auto" is shm without a GPU, nccl where each has its
    own, and ipc where they share.
    """
    if wanted in get_args(Backend):
        return cast(Backend, wanted)
    if devices == 0:
        return "shm"
    return "nccl" if devices >= devices_wanted else "ipc"


@dataclass(frozen=True)
class TensorMeta:
    """Name, element type ("bfloat16") and full shape of a weight, known without gathering it."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class FullTensors:
    """Full named tensors of a policy, one bucket in memory at a time; each ``iter`` is a fresh pass.

    Under ZeRO-3 a pass is collective: every rank makes it, to the end. Names are those of the Hugging Face
    checkpoint; a tensor that is used twice (tied embeddings) comes once. A tensor is valid until the next is asked for.
    """

    def __init__(self, engine_or_module: Any, zero_stage: int) -> None:
        module = engine_or_module
        while hasattr(module, "module"):  # DeepSpeed's engine, DDP
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


def full_tensors(engine_or_module: Any, zero_stage: int) -> FullTensors:
    """Full named tensors of a DeepSpeed engine (ZeRO stage 1, 2 or 3) or of a plain module (stage 0)."""
    return FullTensors(engine_or_module, zero_stage)


class Sender(Protocol):
    """One rank's end of the transfer. See the top of this file for who calls what when."""

    def prepare(self, named_tensors: FullTensors, version: int) -> dict[str, Any]:
        """Make a version ready; on rank 0 the result is what the engine needs, on other ranks it is empty."""

    def transmit(self, info: dict[str, Any]) -> None:
        """Send while the engine receives; nothing for memory-based backends."""

    def retire(self, info: dict[str, Any]) -> None:
        """The engine has loaded the version."""

    def close(self) -> None:
        """Free everything; safe to call twice."""


def open_sender(
    backend: str, *, rank: int, world: int, engine_devices: int = 1, address: str = "127.0.0.1", port: int = 0
) -> Sender:
    """The sending end of ``backend``; nccl meets the engine's devices at ``address`` and ``port`` (0: a free one)."""
    if backend == "shm":
        return ShmSender(rank)
    from overlap.weights_cuda import open_cuda_sender

    return open_cuda_sender(backend, rank=rank, world=world, engine_devices=engine_devices, address=address, port=port)


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
            for _ in named_tensors:
                pass
            return {}
        if self._memory is None:
            self._allocate(named_tensors.metadata)
        self._write(named_tensors)
        path = f"/proc/{os.getpid()}/fd/{self._fd}"
        return {"path": path, "size": len(self._memory or b""), "tensors": self._table}

    def _allocate(self, metadata: Iterable[TensorMeta]) -> None:
        import torch

        size = 0
        for meta in metadata:
            shape = list(meta.shape)
            self._table.append([meta.name, meta.dtype, shape, size])
            count = torch.Size(shape).numel() * getattr(torch, meta.dtype).itemsize
            size += -(-count // _ALIGN) * _ALIGN
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

    def retire(self, info: dict[str, Any]) -> None:
        """The memory is kept for the next version."""

    def close(self) -> None:
        self._memory = None  # unmapped when its last tensor goes
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
