"""Weight backend ``nccl``, by what vLLM's own trainer does. It needs CUDA.

vLLM's trainer engine drives the whole handshake through a client. Here the driver does that (it also pauses and
resumes the engine): ``prepare`` says where to meet and what will come, ``transmit`` meets (once) and broadcasts. After
a transfer that failed nothing of it is left: the next one meets anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import ParamMeta, TrainerWeightTransferEngine, WeightSource
from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
from vllm.distributed.weight_transfer.nccl_common import NCCLWeightTransferInitInfo, worker_init_payload
from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo
from vllm.utils.network_utils import get_open_port

from overlap.core.errors import LearnerError
from overlap.weights.full import FullTensors, WeightSender


class TensorSource(WeightSource):
    """vLLM's view of :class:`~overlap.weights.full.FullTensors`."""

    def __init__(self, tensors: FullTensors) -> None:
        self._tensors = tensors

    def metadata(self) -> list[ParamMeta]:
        return [ParamMeta(m.name, getattr(torch, m.dtype), m.shape) for m in self._tensors.metadata]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        return iter(self._tensors)


class SilentClient:
    """Replaces the driver in vLLM's handshake; the driver has all the data of it from ``prepare``."""

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """The driver has it."""

    def start_weight_update(self) -> None:
        """The driver starts updates."""

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """The driver has it."""

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """The driver finishes them."""


class NcclSender(WeightSender):
    """Rank 0 broadcasts to the engine's devices; the other ranks only help to gather."""

    def __init__(self, rank: int, world_size: int, address: str) -> None:
        self._rank, self._world_size, self._address = rank, world_size, address
        self._meeting: dict[str, Any] = {}
        self._engine: TrainerWeightTransferEngine | None = None
        self._tensors: FullTensors | None = None

    def prepare(self, named_tensors: FullTensors) -> dict[str, Any]:
        self._tensors = named_tensors
        if self._engine is None:
            there = {"master_address": self._address, "master_port": get_open_port()}
            self._meeting = {**there, "world_size": self._world_size}
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

    def transmit(self) -> None:
        """Another group is met after one in which this failed."""
        if self._tensors is None:
            raise LearnerError("nothing was prepared to be sent")
        source = TensorSource(self._tensors)
        with ExitStack() as failed:
            failed.callback(self.close)
            if self._engine is None:
                meeting = NCCLTrainerInitInfo(rank=self._rank, **self._meeting)
                self._engine = WeightTransferTrainerFactory.trainer_init(meeting, client=SilentClient(), source=source)
            self._engine.source = source
            self._engine.send_weights()
            failed.pop_all()

    def retire(self, loaded: bool = True) -> None:
        self._tensors = None
        if not loaded:
            self.close()

    def close(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.shutdown()
