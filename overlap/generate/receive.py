"""The engine's side of a weight sync; vLLM imports this module in its workers (``worker_extension_cls``).

Consumes the description of a :class:`~overlap.core.WeightUpdate` of backend ``shm``; produces loaded weights, or an
error and a model that a full load repairs. Importing it registers our backends, and puts ``worker_patches`` in place.
"""

from __future__ import annotations

import base64
import math
import mmap
import os
import pickle
from dataclasses import dataclass
from typing import Any

import torch
from vllm.config import set_current_vllm_config
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.ipc_engine import IPCWeightTransferEngine, IPCWeightTransferUpdateInfo
from vllm.distributed.weight_transfer.nccl_common import NCCLWeightTransferInitInfo
from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine
from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from overlap.generate.adapter import AdapterIntake, expect_adapter, place_adapter, takes_adapter
from overlap.generate.bind_to_parent import enter_engine_process
from overlap.generate.service import TRANSFERS
from overlap.generate.worker_patches import patch_worker, probe_at

enter_engine_process()


@dataclass
class ShmInit(WeightTransferInitInfo):
    """The shm backend has nothing to agree on beforehand."""


@dataclass
class ShmUpdate(WeightTransferUpdateInfo):
    """Location of the tensors in memory: ``tensors`` holds (name, dtype, shape, offset in bytes) for each."""

    path: str
    size: int
    tensors: list[list[Any]]


class ShmEngine(WeightTransferEngine[ShmInit, ShmUpdate]):
    """Loads weights straight from memory that the learner's rank 0 holds (same host)."""

    init_info_cls = ShmInit
    update_info_cls = ShmUpdate

    def init_transfer_engine(self, init_info: ShmInit) -> None:
        """Nothing to connect."""

    def start_weight_update(self) -> None:
        """Nothing yet of weights: a description that cannot be read must not touch the model."""
        expect_adapter(self)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """As the base class, which waits for an accelerator; a CPU has none."""
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: ShmUpdate) -> None:
        """ValueError for a bad description, before the model is touched; RuntimeError for missing weights."""
        memory = _map(update_info)
        tensors = [_view(memory, *row) for row in update_info.tensors]
        if isinstance(self.model, AdapterIntake):
            self.model.load_weights(tensors)
            return
        wanted = {name for name, _ in self.model.named_parameters()}
        initialize_layerwise_reload(self.model)
        wanted &= {name for name, _ in self.model.named_parameters()}  # without what quantization makes of weights
        try:
            loaded = self.model.load_weights(iter(tensors))
        finally:  # also after an error: the model must be whole again for the next, full, load
            finalize_layerwise_reload(self.model, self.model_config)
            self._repack()
        if missing := sorted(wanted - set(loaded)):
            raise RuntimeError(f"{len(missing)} weights were not sent, the first is {missing[0]}")

    def _repack(self) -> None:
        # vLLM's reload leaves the packed matrix of an embedding that also serves as the head at its old values.
        if self.device.type != "cpu":
            return
        for module in self.model.modules():
            if isinstance(module, VocabParallelEmbedding):
                dispatch_cpu_unquantized_gemm(module, remove_weight=False)

    def finish_weight_update(self) -> None:
        """Use an adapter; weights are in the model."""
        place_adapter(self)

    def abandon(self) -> None:
        """An update leaves nothing behind, however it ends."""

    def shutdown(self) -> None:
        """Nothing is held between updates."""


class IpcEngine(IPCWeightTransferEngine):
    """vLLM's CUDA IPC engine; the memory handles come pickled, because they travel from process to process twice."""

    def start_weight_update(self) -> None:
        """Expect an adapter or all weights."""
        if not expect_adapter(self):
            super().start_weight_update()

    def finish_weight_update(self) -> None:
        """Use what has come, and close the sender's memory."""
        if place_adapter(self):
            self._packed_importer.close()
        else:
            super().finish_weight_update()

    def abandon(self) -> None:
        """Close the sender's memory, and count no layer's weights together with those of the next update."""
        self._packed_importer.close()
        finalize_layerwise_reload(self.model, self.model_config)

    def parse_update_info(self, update_dict: dict[str, Any]) -> IPCWeightTransferUpdateInfo:
        rest = dict(update_dict)
        handles = pickle.loads(base64.b64decode(rest.pop("handles")))  # written by our own learner
        return super().parse_update_info(rest | {"ipc_handles": handles})


class NcclEngine(NCCLWeightTransferEngine):
    """vLLM's NCCL engine, which joins a group again after one that failed."""

    def start_weight_update(self) -> None:
        """Expect an adapter or all weights."""
        if not expect_adapter(self):
            super().start_weight_update()

    def finish_weight_update(self) -> None:
        """Use what has come."""
        if not place_adapter(self):
            super().finish_weight_update()

    def init_transfer_engine(self, init_info: NCCLWeightTransferInitInfo) -> None:
        """Join another group than before."""
        self.shutdown()
        super().init_transfer_engine(init_info)

    def abandon(self) -> None:
        """Leave the group, and count no layer's weights together with those of the next update."""
        self.shutdown()
        finalize_layerwise_reload(self.model, self.model_config)


def _map(update: ShmUpdate) -> mmap.mmap:
    """Private mapping of the sender's memory; it goes when the last tensor on it does."""
    fd = os.open(update.path, os.O_RDONLY)
    try:
        if (size := os.fstat(fd).st_size) < update.size:
            raise ValueError(f"{update.path} has {size} bytes, not {update.size}")
        return mmap.mmap(fd, update.size, access=mmap.ACCESS_COPY)
    finally:
        os.close(fd)


def _view(memory: mmap.mmap, name: str, dtype: str, shape: list[int], offset: int) -> tuple[str, torch.Tensor]:
    count, kind = math.prod(shape), getattr(torch, dtype)
    if offset < 0 or offset + count * kind.itemsize > len(memory):
        raise ValueError(f"{name} reaches beyond the {len(memory)} bytes that were sent")
    return name, torch.frombuffer(memory, dtype=kind, count=count, offset=offset).view(shape)


class WorkerExtension:
    """Mixed into vLLM's worker: methods that the driver calls by name."""

    model_runner: Any
    weight_transfer_engine: Any
    vllm_config: Any
    _weight_update_active: bool

    def overlap_abandon_weights(self) -> None:
        """Be as before an update that failed here, or elsewhere while it went on here."""
        engine, self._weight_update_active = self.weight_transfer_engine, False
        engine.reset_weight_update_target()
        with set_current_vllm_config(self.vllm_config):
            engine.abandon()

    def overlap_keep_adapter(self) -> None:
        """Keep an adapter at the end of the update that brought it. vLLM drops all then, for the weights that they are
        beside may be others.
        """
        runner = self.model_runner
        if not (callable(getattr(runner, "reset_lora_state", None)) and takes_adapter(runner.get_model())):
            raise RuntimeError(f"{type(runner).__name__} keeps adapters in a way that is not known here")
        runner.reset_lora_state = lambda: None

    def overlap_probe_at(self, temperature: float) -> None:
        """Give prompt log-probs at the sampling temperature; vLLM gives them at 1 whatever the request says."""
        probe_at(self.model_runner, temperature)


patch_worker()
for _backend, _engine in (("shm", ShmEngine), ("ipc", IpcEngine), ("nccl", NcclEngine)):
    if TRANSFERS[_backend] not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(TRANSFERS[_backend], _engine)
