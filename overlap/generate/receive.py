"""The engine's side of a weight sync; vLLM imports this module in its workers (``worker_extension_cls``).

Consumes the description of a :class:`~overlap.core.WeightUpdate` of backend ``shm``; produces loaded weights, or an
error and a model that a full load repairs. Importing it registers our backends, and puts ``worker_patches`` in place.

An adapter (LoRA) replaces the one that every request names, in its place, by the same transfers:

    start ──▶ AdapterIntake replaces the model ──▶ load_weights, once or more ──▶ place
"""

from __future__ import annotations

import base64
import math
import mmap
import os
import pickle
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from vllm.config import set_current_vllm_config
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.ipc_engine import IPCWeightTransferEngine, IPCWeightTransferUpdateInfo
from vllm.distributed.weight_transfer.nccl_common import NCCLWeightTransferInitInfo
from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine
from vllm.lora.lora_model import LoRAModel
from vllm.lora.peft_helper import PEFTHelper
from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from overlap.generate.bind_to_parent import enter_engine_process
from overlap.generate.service import ADAPTER_ID, TRANSFERS
from overlap.generate.worker_patches import patch_worker, probe_at
from overlap.weights.full import ADAPTER_SCALE

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


class AdapterTransfer:
    """Mixed into an engine of vLLM, before it: it transfers an adapter where the model has a place for one."""

    def start_weight_update(self) -> None:
        """Expect an adapter or all weights."""
        if not expect_adapter(self):
            super().start_weight_update()  # type: ignore[misc]

    def finish_weight_update(self) -> None:
        """Use what has come."""
        if not place_adapter(self):
            super().finish_weight_update()  # type: ignore[misc]


class IpcEngine(AdapterTransfer, IPCWeightTransferEngine):
    """vLLM's CUDA IPC engine; the memory handles come pickled, because they travel from process to process twice."""

    def finish_weight_update(self) -> None:
        """Use what has come, and close the sender's memory."""
        super().finish_weight_update()
        self._packed_importer.close()

    def abandon(self) -> None:
        """Close the sender's memory, and count no layer's weights together with those of the next update."""
        self._packed_importer.close()
        finalize_layerwise_reload(self.model, self.model_config)

    def parse_update_info(self, update_dict: dict[str, Any]) -> IPCWeightTransferUpdateInfo:
        rest = dict(update_dict)
        handles = pickle.loads(base64.b64decode(rest.pop("handles")))  # written by our own learner
        return super().parse_update_info(rest | {"ipc_handles": handles})


class NcclEngine(AdapterTransfer, NCCLWeightTransferEngine):
    """vLLM's NCCL engine, which joins a group again after one that failed."""

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


class AdapterIntake:
    """The received part of an adapter, until all of it is there; nothing of the model changes before that."""

    def __init__(self, model: Any) -> None:
        self._model, self._tensors = model, dict[str, torch.Tensor]()

    def load_weights(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Copy them: the sender's memory is used again."""
        self._tensors |= {name: tensor.to("cpu", copy=True) for name, tensor in tensors}

    def place(self) -> None:
        """Replace the adapter. RuntimeError where a layer's is missing, or belongs to no layer."""
        manager = self._model.lora_manager
        adapter = _adapter(self._model, self._tensors, manager.lora_config.lora_dtype)
        manager.remove_adapter(ADAPTER_ID)
        manager.add_adapter(adapter)  # which puts queries, keys and values together, as the layer has them
        wanted, found = set(manager.modules), {name for name, lora in adapter.loras.items() if _is_whole(lora)}
        if wanted != found:
            manager.remove_adapter(ADAPTER_ID)
            odd = sorted(wanted ^ found)
            what = f"the adapters of {len(odd)} layers were not sent, or have no place here ({odd[0]})"
            raise RuntimeError(f"{what}: train all weights (learn.lora_rank=0)")
        manager.activate_adapter(ADAPTER_ID)


def takes_adapter(model: Any) -> bool:
    """Return whether a model of vLLM has a place for adapters."""
    return hasattr(model, "lora_manager")


def expect_adapter(engine: Any) -> bool:
    """Have a weight transfer engine receive an adapter, if its model has a place for one; return whether it has one."""
    if takes := takes_adapter(engine.model):
        engine.set_weight_update_target(AdapterIntake(engine.model), engine.model_config)
    return takes


def place_adapter(engine: Any) -> bool:
    """Use the adapter that a weight transfer engine has received, if it was to receive one; return whether it was.
    Raises as ``AdapterIntake.place``.
    """
    takes = isinstance(engine.model, AdapterIntake)
    if takes:
        engine.model.place()
        if engine.device.type != "cpu":
            torch.accelerator.synchronize()
    return takes


def _is_whole(lora: Any) -> bool:
    """Return whether both halves of a layer's adapter are there; of a joint layer (queries, keys, values) all."""
    halves = [half if isinstance(half, list) else [half] for half in (lora.lora_a, lora.lora_b)]
    return all(part is not None for half in halves for part in half)


def _adapter(model: Any, tensors: dict[str, torch.Tensor], dtype: torch.dtype) -> LoRAModel:
    rank = next((len(tensor) for name, tensor in tensors.items() if ".lora_A." in name), 0)
    mapper = getattr(model, "hf_to_vllm_mapper", None)
    return LoRAModel.from_lora_tensors(
        ADAPTER_ID,
        tensors,
        PEFTHelper(r=rank, lora_alpha=int(ADAPTER_SCALE * rank), target_modules=[]),
        device="cpu",
        dtype=dtype,
        weights_mapper=mapper and mapper.get_rename_mapper(),
        skip_prefixes=getattr(model, "lora_skip_prefixes", None),
    )


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
