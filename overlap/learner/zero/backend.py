"""The library that trains: DeepSpeed with ZeRO 1, 2 or 3, and Ulysses (Jacobs et al. 2023) for sequence parallelism.

    load ──▶ train ──▶ forward, backward, step, ... ──▶ full_tensors ──▶ the engine
                                   └──▶ save ──▶ restore, saved_tensors

Each rank has one ``ZeroBackend``, and it makes a ``ZeroModel`` of every model that learns, the policy or a critic; the
rate of an optimizer step is the same for both.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any, assert_never

import torch
import torch.distributed as dist
from torch import Tensor

from overlap.config.fields import Config
from overlap.config.learn import LearnConfig
from overlap.core.errors import LearnerError
from overlap.learner.attention import NAME
from overlap.learner.tensors import SequenceGroup
from overlap.learner.zero.checkpoints import OldShards, load_resharded, save_shards
from overlap.learner.zero.loading import Partitioner, gathered
from overlap.weights.full import FullTensors, LowRank, full_tensors

Loaded = tuple[Any, dict[str, Any]]
"""A model of transformers, and what ``from_pretrained`` reports with ``output_loading_info``."""
_MASTERS = ("single_partition_of_fp32_groups", "fp32_groups_flat_partition", "fp32_partitioned_groups_flat")
"""Float32 weights in DeepSpeed's optimizers: attributes for ZeRO 1 and 2, for ZeRO 1 in bfloat16, and for ZeRO 3."""
_GRADIENTS = ("fp32_groups_gradients_flat", "grad_partitions_flat_buffer", "averaged_gradients", "all_grad_tensors")


class ZeroBackend:
    """Trains on the ranks of torch's process group, by the ZeRO stage and the offload of ``cfg``."""

    def __init__(self, cfg: Config) -> None:
        self._cfg = cfg
        self.partitions = cfg.learn.zero_stage == 3
        """Parameters are partitioned from the moment at which they are read."""

    @cached_property
    def options(self) -> dict[str, Any]:
        """DeepSpeed's configuration. Gradients are summed in float32 in any case, over micro-batches as over ranks."""
        cfg = self._cfg
        made: dict[str, Any] = {
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1,
            "gradient_clipping": cfg.learn.grad_clip,
            "bf16": {"enabled": cfg.dtype == "bfloat16"},
            "zero_optimization": {"stage": cfg.learn.zero_stage},
            "data_types": {"grad_accum_dtype": "fp32"},
            "communication_data_type": "fp32",
            "steps_per_print": 2**62,
        }
        if cfg.learn.offload == "cpu":
            pins = cfg.run.device != "cpu" and torch.cuda.is_available()
            made["zero_optimization"]["offload_optimizer"] = {"device": "cpu", "pin_memory": pins}
            made["zero_force_ds_cpu_optimizer"] = False  # torch's own, which no compiler has to make first
        return made

    def join(self, device: torch.device) -> None:
        """Called once on each rank, in the process group, before anything else."""
        os.environ["DS_ACCELERATOR"] = device.type
        import deepspeed

        if device.type == "cpu":  # on GPUs there is none, and looking for it there tries to build all other ops
            # Its own all-reduce for inference on CPUs would be compiled at start and leave names in /dev/shm.
            deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        else:  # it would ask NVML, where devices have numbers: CUDA_VISIBLE_DEVICES may name them by UUID
            deepspeed.accelerator.get_accelerator().available_memory = lambda index=None: torch.cuda.mem_get_info()[0]
        deepspeed.init_distributed(dist_backend=dist.get_backend(), auto_mpi_discovery=False, verbose=False)

    def load(self, load: Callable[[], Loaded], dtype: torch.dtype) -> Loaded:
        """Call ``load``, ``from_pretrained`` of transformers. Where models are partitioned, this one comes with
        this rank's part alone, in ``dtype``.
        """
        return Partitioner(self.options, dtype).load(load) if self.partitions else load()

    def gathered(self, module: Any) -> AbstractContextManager[None]:
        """Within it a partitioned module computes although nothing trains it yet."""
        return gathered(module) if self.partitions else nullcontext()

    def train(self, module: Any, optimizer: Any) -> ZeroModel:
        """Make a model with its optimizer, of torch, ready to be trained."""
        import deepspeed

        engine, *_ = deepspeed.initialize(model=module, optimizer=optimizer, config=self.options)
        return ZeroModel(engine, self._cfg.learn.zero_stage)

    def freeze(self, module: Any) -> Any:
        """Make a model ready for forward passes without gradients; returns what to call."""
        if not self.partitions:
            return module
        import deepspeed

        return deepspeed.initialize(model=module, config=self.options)[0]

    def share_sequences(self, policy: Any, size: int) -> SequenceGroup:
        """Put sequence parallelism over ``size`` ranks around the packed attention, of all models in this process."""
        from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF

        groups = UlyssesSPAttentionHF.register_with_transformers(policy, NAME, size, 1, seq_length_is_variable=True)
        return SequenceGroup(groups.get_sequence_parallel_group(), groups.get_sequence_parallel_rank(), size)


class ZeroModel:
    """A model and its optimizer on one rank, in DeepSpeed's ``engine``. Parameters of ``module`` may be partitioned.

    Every method but ``states``, ``scratch`` and ``parameters`` is collective: all ranks call it, in the same order.
    """

    def __init__(self, engine: Any, zero_stage: int) -> None:
        self.engine, self.module, self._stage = engine, engine.module, zero_stage

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Forward pass of ``module``."""
        return self.engine(*args, **kwargs)

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Add the gradient of the scalar ``loss``, averaged over ranks, in float32. ``last``: before ``step``."""
        self.engine.set_gradient_accumulation_boundary(last)
        self.engine.backward(loss)

    def step(self, rate: float) -> float:
        """Take the optimizer step at that learning rate; returns the norm of the whole gradient before clipping."""
        for group in self.engine.optimizer.param_groups:
            group["lr"] = rate
        self.engine.step()
        return float(self.engine.get_global_grad_norm())

    def full_tensors(self, adapters: Mapping[str, LowRank]) -> FullTensors:
        """Full named tensors of ``module.policy``, with ``adapters`` in them."""
        return full_tensors(self.module.policy, self._stage, adapters)

    def master(self, parameter: Any) -> Tensor:
        """The whole of a parameter that learns, as the optimizer has it, float32."""
        from deepspeed.utils import safe_get_full_fp32_param

        return safe_get_full_fp32_param(parameter)

    def save(self, folder: Path) -> None:
        """Write this rank's part of parameters and optimizer into ``folder``, which exists; frozen parameters are left
        out. Raises OSError or RuntimeError, but only when no other rank waits for this one.
        """
        save_shards(self.engine, folder, self._frozen)

    def restore(self, folder: Path, *, ranks: int, zero_stage: int) -> None:
        """Load what ``ranks`` ranks have saved under that ZeRO stage. Raises ConfigError."""
        if (ranks, zero_stage) == (dist.get_world_size(), self._stage):
            strict = not self._frozen
            self.engine.load_checkpoint(str(folder.parent), tag=folder.name, load_module_strict=strict)
        else:
            load_resharded(self.engine.optimizer, OldShards(folder, ranks=ranks, stage=zero_stage), self._stage)

    @property
    def _frozen(self) -> set[str]:
        """Names of parameters, also second ones of the same."""
        return {name for name, p in self.module.named_parameters(remove_duplicate=False) if not p.requires_grad}

    def states(self) -> Iterator[Tensor]:
        """Tensors of the optimizer, and the float32 weights."""
        inner = self.engine.optimizer.optimizer
        for state in inner.state.values():
            yield from (value for value in state.values() if isinstance(value, Tensor))
        for group in inner.param_groups:
            yield from group["params"]
        for name in _MASTERS:
            yield from getattr(self.engine.optimizer, name, ())

    def scratch(self) -> Iterator[Tensor]:
        """Gradients and buffers for them, whose values mean nothing between two steps."""
        optimizer = self.engine.optimizer
        for name in _GRADIENTS:
            yield from _tensors(getattr(optimizer, name, None))
        for bucket in getattr(optimizer, "ipg_buckets", {}).values():
            yield from _tensors(bucket.buffer)
        for weights in (*self.states(), *self.module.parameters()):
            yield from _tensors([weights.grad, getattr(weights, "grad_accum", None)])

    def parameters(self, *modules: Any) -> Iterator[Tensor]:
        """Parameters that forward passes of ``modules`` need; those of ``module`` where none is given."""
        for module in modules or (self.module,):
            for parameter in module.parameters():
                yield parameter
                yield from _tensors(getattr(parameter, "ds_tensor", None))

    def free_gathered(self) -> None:
        """Free the parameters of other ranks that a pass has left here."""
        self.engine.empty_partition_cache()


def _tensors(held: Any) -> Iterator[Tensor]:
    """All tensors in lists and values of dicts."""
    if isinstance(held, Tensor):
        yield held
    elif isinstance(held, dict | list | tuple):
        for inner in held.values() if isinstance(held, dict) else held:
            yield from _tensors(inner)


def learning_rate(update: int, learn: LearnConfig, total: int) -> float:
    """Rate of optimizer step ``update`` (from 0) of ``total``: linear warm-up to ``lr``, then the schedule.

    The warm-up's step i has (i + 1) / warmup of the rate; linear and cosine reach 0 one step after the last.
    """
    if update < learn.warmup_steps:
        return learn.lr * (update + 1) / learn.warmup_steps
    span = max(1, total - learn.warmup_steps)
    done = min(1.0, (update - learn.warmup_steps) / span)
    match learn.schedule:
        case "constant":
            return learn.lr
        case "linear":
            return learn.lr * (1.0 - done)
        case "cosine":
            return learn.lr * (0.5 * (1.0 + math.cos(math.pi * done)))
        case _:
            assert_never(learn.schedule)


def take_step(model: ZeroModel, rate: float, field: str) -> float:
    """``ZeroModel.step``. Raises LearnerError, with the rate's ``field``, for a gradient norm that is no number."""
    norm = model.step(rate)
    if not math.isfinite(norm):
        raise LearnerError(f"the gradient norm is {norm}: lower {field}")
    return norm
