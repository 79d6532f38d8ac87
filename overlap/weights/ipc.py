"""Weight backend ``ipc``: a buffer on each GPU, which its engine reads through CUDA's memory handles.

    prepare: forget the last time.   chunk: fill the buffer again.   retire: free it

After a transfer that failed nothing of it is left: the next one fills a new buffer. The buffer is filled by vLLM's own
producer, which is imported with the first one.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from overlap.core.errors import LearnerError
from overlap.weights.full import FullTensors, WeightSender

CHUNK_BYTES = 1 << 30
"""Bytes of the buffer, unless a single tensor is larger: then the size of that tensor."""


class Device:
    """All that ``IpcSender`` does with CUDA."""

    def uuid(self) -> str:
        """Return the UUID of the current GPU, the same in all processes."""
        return str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)

    def fill(self, tensors: Iterator[tuple[str, torch.Tensor]], size: int) -> Generator[Any, None, None]:
        """Fill a buffer of ``size`` bytes with as many tensors as it takes, again and again. Yields what vLLM calls a
        PackedIpcChunk: names, shapes, dtype_names, tensor_sizes and the buffer's ipc_handle by uuid.
        """
        from vllm.distributed.weight_transfer.packed_tensor import packed_ipc_producer

        yield from packed_ipc_producer(tensors, self.uuid(), lambda named: named[1], size)

    def collect(self) -> None:
        """Free buffers that no engine reads any more."""
        torch.cuda.ipc_collect()
        torch.cuda.empty_cache()


@dataclass
class UnreadChunk:
    """The fields of vLLM's PackedIpcChunk, for a rank whose GPU has no engine: without a handle."""

    names: list[str] = field(default_factory=list)
    shapes: list[list[int]] = field(default_factory=list)
    dtype_names: list[str] = field(default_factory=list)
    tensor_sizes: list[int] = field(default_factory=list)
    ipc_handle: dict[str, Any] = field(default_factory=dict)


def fill_nothing(tensors: Iterator[tuple[str, torch.Tensor]], size: int) -> Generator[UnreadChunk, None, None]:
    """Take the tensors as ``Device.fill`` does, chunk by chunk, for the sake of the ranks that gather with this one."""
    chunk = UnreadChunk()
    for name, tensor in tensors:
        if chunk.names and sum(chunk.tensor_sizes) + tensor.nbytes > size:
            yield chunk
            chunk = UnreadChunk()
        chunk.names.append(name)
        chunk.shapes.append(list(tensor.shape))
        chunk.dtype_names.append(str(tensor.dtype).removeprefix("torch."))
        chunk.tensor_sizes.append(tensor.nbytes)
    if chunk.names:
        yield chunk


class IpcSender(WeightSender):
    """Shares a buffer of each GPU with the engines on it: no rank ever holds a copy of the whole model.

    Every rank fills its own buffer with the same tensors, and rank 0 gives the handles of all, by the GPU's uuid: so
    one chunk serves all engines that work on these GPUs. The next one overwrites it, so it may only be asked for when
    every engine has loaded it.

    A rank whose GPU has no engine (``read`` is false) exports nothing: torch frees an exported buffer only when
    a process has opened and closed it.
    """

    def __init__(self, rank: int, device: Any, *, read: bool = True) -> None:
        self._rank, self._device = rank, device
        self._fill = device.fill if read else fill_nothing
        self._tensors: FullTensors | None = None
        self._source: Any = None
        self._filling: Generator[Any, None, None] | None = None

    def prepare(self, named_tensors: FullTensors) -> dict[str, Any]:
        self._stop()
        self._tensors = named_tensors
        return {"init": {"packed": True}} if self._rank == 0 else {}

    def chunk(self, first: bool) -> dict[str, Any] | None:
        """Fill the buffer again; None when all has been sent. Collective. ``first`` begins with the first tensor."""
        if first:
            self._stop()
            self._begin()
        if self._filling is None:
            raise LearnerError("nothing was prepared to be sent")
        made = next(self._filling, None)
        if made is None:
            self._stop()
            return None
        handles = self._gather(made.ipc_handle)
        if self._rank != 0:
            return {}
        return {
            "names": made.names,
            "dtype_names": made.dtype_names,
            "shapes": made.shapes,
            "tensor_sizes": made.tensor_sizes,
            "handles": base64.b64encode(pickle.dumps(handles)).decode(),
        }

    def _begin(self) -> None:
        if self._tensors is None:
            raise LearnerError("nothing was prepared to be sent")
        sizes = [meta.bytes for meta in self._tensors.metadata]
        self._source = iter(self._tensors)
        self._filling = self._fill(self._source, max(max(sizes), min(CHUNK_BYTES, sum(sizes))))

    def _gather(self, own: dict[str, Any]) -> dict[str, Any]:
        """Collective: every rank's."""
        if not dist.is_initialized() or dist.get_world_size() == 1:
            return own
        found: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(found, own)
        return {uuid: handle for handles in found for uuid, handle in handles.items()}

    def _stop(self) -> None:
        """Free the buffer, and whatever a pass that was broken off had gathered."""
        filling, source = self._filling, self._source
        self._filling = self._source = None
        if filling is not None:
            filling.close()
            source.close()
            del filling, source
            self._device.collect()

    def retire(self, loaded: bool = True) -> None:
        self._stop()
        self._tensors = None
        self._device.collect()  # engines hold the buffer until they have committed or abandoned what they loaded

    def close(self) -> None:
        self._stop()
