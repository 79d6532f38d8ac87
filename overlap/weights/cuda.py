"""Weight backends ``nccl`` and ``ipc``, by what vLLM's own trainers do. They need CUDA.

vLLM's trainer engines want to drive the whole handshake through a client. Here the driver does that (it also pauses and
resumes the engine):

    nccl   prepare: where to meet and what will come.   transmit: meet (once), broadcast.   retire: nothing
    ipc    prepare: forget the last time.               chunk: fill the buffer again.       retire: free it

After a transfer that failed nothing of it is left: the next one meets anew, or fills a new buffer.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Generator, Iterator
from typing import Any

import torch
import torch.distributed as dist
from vllm.distributed.weight_transfer.base import ParamMeta, TrainerWeightTransferEngine, WeightSource
from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
from vllm.distributed.weight_transfer.nccl_common import NCCLWeightTransferInitInfo, worker_init_payload
from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo
from vllm.distributed.weight_transfer.packed_tensor import packed_ipc_producer
from vllm.utils.network_utils import get_open_port

from overlap.errors import LearnerError
from overlap.weights.full import FullTensors, WeightSender

CHUNK_BYTES = 1 << 30
"""Of the buffer that ipc goes through, unless a single tensor is larger: then that is its size."""


class TensorSource(WeightSource):
    """vLLM's view of :class:`~overlap.weights.full.FullTensors`."""

    def __init__(self, tensors: FullTensors) -> None:
        self._tensors = tensors

    def metadata(self) -> list[ParamMeta]:
        return [ParamMeta(m.name, getattr(torch, m.dtype), m.shape) for m in self._tensors.metadata]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        return iter(self._tensors)


class SilentClient:
    """Stands for the driver in vLLM's handshake, which has all of it from ``prepare``."""

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """The driver has it."""

    def start_weight_update(self) -> None:
        """The driver starts updates."""

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """The driver has it."""

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """The driver finishes them."""


def open_cuda_sender(backend: str, *, rank: int, engine_devices: int, address: str, port: int) -> WeightSender:
    """Raises LearnerError for a backend that is not known."""
    if backend == "nccl":
        return NcclSender(rank, 1 + engine_devices, address, port)
    if backend == "ipc":
        return IpcSender(rank, Device())
    raise LearnerError(f"weight backend {backend!r} is not known: use shm, ipc or nccl")


class NcclSender:
    """Rank 0 broadcasts to the engine's devices; the other ranks only help to gather."""

    def __init__(self, rank: int, world_size: int, address: str, port: int) -> None:
        self._rank, self._world_size = rank, world_size
        self._address, self._port = address, port
        self._meeting: dict[str, Any] = {}
        self._engine: TrainerWeightTransferEngine | None = None
        self._tensors: FullTensors | None = None

    def prepare(self, named_tensors: FullTensors, version: int) -> dict[str, Any]:
        self._tensors = named_tensors
        if self._engine is None:
            port = self._port or get_open_port()
            self._meeting = {"master_address": self._address, "master_port": port, "world_size": self._world_size}
        if self._rank != 0:
            return {}
        metadata = named_tensors.metadata
        init = NCCLWeightTransferInitInfo(rank_offset=1, packed=True, **self._meeting)
        return {
            "init": worker_init_payload(init),
            "update": {
                "names": [m.name for m in metadata],
                "dtype_names": [m.dtype for m in metadata],
                "shapes": [list(m.shape) for m in metadata],
            },
        }

    def transmit(self, info: dict[str, Any]) -> None:
        """Another group is met after one in which this failed."""
        if self._tensors is None:
            raise LearnerError("nothing was prepared to be sent")
        source = TensorSource(self._tensors)
        try:
            if self._engine is None:
                meeting = NCCLTrainerInitInfo(rank=self._rank, **self._meeting)
                self._engine = WeightTransferTrainerFactory.trainer_init(meeting, client=SilentClient(), source=source)
            self._engine.source = source
            self._engine.send_weights()
        except BaseException:
            self.close()
            raise

    def chunk(self, first: bool) -> dict[str, Any] | None:
        """All of it goes in one ``transmit``."""
        return None

    def retire(self, info: dict[str, Any], *, loaded: bool = True) -> None:
        self._tensors = None
        if not loaded:
            self.close()

    def close(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.shutdown()


class Device:
    """All that ``IpcSender`` does with CUDA."""

    def uuid(self) -> str:
        """What all processes call the current GPU."""
        return str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)

    def fill(self, tensors: Iterator[tuple[str, torch.Tensor]], size: int) -> Generator[Any, None, None]:
        """Fill a buffer of ``size`` bytes with as many tensors as it takes, again and again. Yields what vLLM calls a
        PackedIpcChunk: names, shapes, dtype_names, tensor_sizes and the buffer's ipc_handle by uuid.
        """
        yield from packed_ipc_producer(tensors, self.uuid(), lambda named: named[1], size)

    def collect(self) -> None:
        """Free buffers that no engine reads any more."""
        torch.cuda.ipc_collect()
        torch.cuda.empty_cache()


class IpcSender:
    """Shares a buffer of each GPU with the engines on it: no rank ever holds a copy of the whole model.

    Every rank fills its own buffer with the same tensors, and rank 0 gives the handles of all, by the GPU's uuid: so
    one chunk serves all engines that work on these GPUs. The next one overwrites it, so it may only be asked for when
    every engine has loaded it.
    """

    def __init__(self, rank: int, device: Any) -> None:
        self._rank, self._device = rank, device
        self._tensors: FullTensors | None = None
        self._source: Any = None
        self._filling: Generator[Any, None, None] | None = None

    def prepare(self, named_tensors: FullTensors, version: int) -> dict[str, Any]:
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
        self._filling = self._device.fill(self._source, max(max(sizes), min(CHUNK_BYTES, sum(sizes))))

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

    def transmit(self, info: dict[str, Any]) -> None:
        """The chunks are the transfer."""

    def retire(self, info: dict[str, Any], *, loaded: bool = True) -> None:
        self._stop()
        self._tensors = None
        self._device.collect()  # engines hold the buffer until they have committed or abandoned what they loaded

    def close(self) -> None:
        self._stop()
