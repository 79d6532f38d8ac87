"""The engine's side of a weight sync; vLLM imports this module in its workers (``worker_extension_cls``).

Consumes the description of a :class:`~overlap.core.WeightUpdate` of backend ``shm``; produces loaded weights, or an
error and a model that a full load repairs. Importing it registers our backends.
"""

from __future__ import annotations

import base64
import inspect
import logging
import math
import mmap
import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from vllm.config import set_current_vllm_config
from vllm.distributed.device_communicators.shm_broadcast import SpinCondition
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.ipc_engine import IPCWeightTransferEngine, IPCWeightTransferUpdateInfo
from vllm.distributed.weight_transfer.nccl_common import NCCLWeightTransferInitInfo
from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine
from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.platforms import current_platform
from vllm.v1.sample import rejection_sampler

from overlap.generate.adapter import AdapterIntake, expect_adapter, place_adapter, use_one_adapter
from overlap.generate.bind_to_parent import enter_engine_process

enter_engine_process()

IDLE_S = 0.002
"""An idle worker looks for work without a pause for so long, then sleeps until it is woken."""


def sleep_when_idle(condition: Any = SpinCondition) -> None:
    """Have workers on a CPU sleep after ``IDLE_S``; by default they hold a core for 1 s, and it is the learner's. On
    GPUs, where a step takes longer than ``IDLE_S``, each would wait for a wake-up.

    RuntimeError where vLLM waits in another way. To be called before a worker makes its queues.
    """
    if not current_platform.is_cpu():
        return
    init = condition.__init__
    if list(inspect.signature(init).parameters)[-1:] != ["busy_loop_s"] or init.__defaults__ not in ((1,), (IDLE_S,)):
        raise RuntimeError(f"this vLLM's {condition.__name__} waits in a way that is not known here")
    init.__defaults__ = (IDLE_S,)


class DemoteReloadWarnings(logging.Filter):
    """Makes "Failed to load weights" of vLLM's reload a message for debugging: it comes at every load, for layers that
    have no weights of their own (rotary embeddings, a tied output layer) and keep what they have. Whether a load was
    whole is measured by the parity check.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        if not (record.levelno == logging.WARNING and "Failed to load weights" in str(record.msg)):
            return True
        record.levelno, record.levelname = logging.DEBUG, logging.getLevelName(logging.DEBUG)
        return logging.getLogger(record.name).isEnabledFor(logging.DEBUG)


logging.getLogger("vllm.model_executor.model_loader.reload.layerwise").addFilter(DemoteReloadWarnings())


@dataclass
class ShmInit(WeightTransferInitInfo):
    """The shm backend has nothing to agree on beforehand."""


@dataclass
class ShmUpdate(WeightTransferUpdateInfo):
    """Where the tensors lie: ``tensors`` holds (name, dtype, shape, offset in bytes) for each."""

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


def expand_to_tokens(
    values: torch.Tensor, ends: torch.Tensor, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> torch.Tensor:
    """``values`` [B] of requests for each of their drafted tokens [T]; ``ends`` [B] are their running sums of those.

    In the place of vLLM's own, which on a CPU without Triton writes into a copy: drafts were judged at a temperature
    that was whatever the memory held.
    """
    counts = torch.diff(ends, prepend=ends.new_zeros(1))
    return values.masked_fill(values == replace_from, replace_to).repeat_interleave(counts, output_size=num_tokens)


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
        if not callable(getattr(self.model_runner, "reset_lora_state", None)):
            raise RuntimeError(f"{type(self.model_runner).__name__} drops adapters in a way that is not known here")
        self.model_runner.reset_lora_state = lambda: None

    def overlap_probe_at(self, temperature: float) -> None:
        """Give prompt log-probs at the sampling temperature; vLLM gives them at 1 whatever the request says."""
        probe_at(self.model_runner, temperature)


def probe_at(runner: Any, temperature: float) -> None:
    """Scale the logits of prompt log-probs in either of vLLM's model runners, in float32 as its sampler does;
    RuntimeError for a third kind.
    """
    if (worker := getattr(runner, "prompt_logprobs_worker", None)) is not None:
        inner = worker.compute_prompt_logprobs
        worker.compute_prompt_logprobs = lambda logits_fn, *args, **kwargs: inner(
            lambda hidden: logits_fn(hidden).float() / temperature, *args, **kwargs
        )
    elif hasattr(runner, "_get_prompt_logprobs_dict") and hasattr(runner.sampler, "compute_logprobs"):
        runner._get_prompt_logprobs_dict = _tempered(runner, temperature)
    else:
        raise RuntimeError(f"{type(runner).__name__} computes prompt log-probs in a way that is not known here")


def _tempered(runner: Any, temperature: float) -> Callable[..., Any]:
    inner, sampler = runner._get_prompt_logprobs_dict, runner.sampler
    plain = sampler.compute_logprobs

    def prompt_logprobs(*args: Any, **kwargs: Any) -> Any:
        sampler.compute_logprobs = lambda logits: plain(logits.float() / temperature)
        try:
            return inner(*args, **kwargs)
        finally:
            sampler.compute_logprobs = plain

    return prompt_logprobs


sleep_when_idle()
use_one_adapter()
if current_platform.is_cpu():
    rejection_sampler.expand_batch_to_tokens = expand_to_tokens
for _name, _engine in (("overlap_shm", ShmEngine), ("overlap_ipc", IpcEngine), ("overlap_nccl", NcclEngine)):
    if _name not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(_name, _engine)
