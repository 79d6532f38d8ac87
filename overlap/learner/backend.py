"""Interface of the library that trains: each rank has one ``TrainBackend``, and it makes a ``TrainedModel`` of every
model that learns.

    load ──▶ train ──▶ forward, backward, step, ... ──▶ full_tensors ──▶ the engine
                                   └──▶ save ──▶ restore, saved_tensors

Runs use ``overlap.learner.zero.backend``. What a method says of failures and of other ranks holds for every backend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor, device

    from overlap.learner.sequence import SequenceGroup
    from overlap.weights.full import FullTensors, LowRank

Loaded = tuple[Any, dict[str, Any]]
"""A model of transformers, and what ``from_pretrained`` reports with ``output_loading_info``."""


class TrainedModel(Protocol):
    """A model and its optimizer on one rank. Every method but ``states``, ``scratch`` and ``parameters`` is collective:
    all ranks call it, in the same order.
    """

    module: Any
    """The ``torch.nn.Module``; its parameters may be partitioned."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Forward pass of ``module``."""

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Add the gradient of the scalar ``loss``, averaged over ranks, in float32. ``last``: before ``step``."""

    def step(self, rate: float) -> float:
        """Take the optimizer step at that learning rate; returns the norm of the whole gradient before clipping."""

    def full_tensors(self, adapters: Mapping[str, LowRank]) -> FullTensors:
        """Full named tensors of ``module.policy``, with ``adapters`` in them."""

    def master(self, parameter: Any) -> Tensor:
        """The whole of a parameter that learns, as the optimizer has it, float32."""

    def save(self, folder: Path) -> None:
        """Write this rank's part of parameters and optimizer into ``folder``, which exists; frozen parameters are left
        out. Raises OSError or RuntimeError, but only when no other rank waits for this one.
        """

    def restore(self, folder: Path, *, ranks: int, zero_stage: int) -> None:
        """Load what ``ranks`` ranks have saved under that ZeRO stage. Raises ConfigError."""

    def states(self) -> Iterator[Tensor]:
        """Tensors of the optimizer, and the float32 weights."""

    def scratch(self) -> Iterator[Tensor]:
        """Gradients and buffers for them, whose values mean nothing between two steps."""

    def parameters(self, *modules: Any) -> Iterator[Tensor]:
        """Parameters that forward passes of ``modules`` need; those of ``module`` where none is given."""

    def free_gathered(self) -> None:
        """Free the parameters of other ranks that a pass has left here."""


class TrainBackend(Protocol):
    """The library that trains on the ranks of torch's process group."""

    def join(self, device: device) -> None:
        """Called once on each rank, in the process group, before anything else."""

    def load(self, load: Callable[[], Loaded], dtype: Any) -> Loaded:
        """Call ``load``, ``from_pretrained`` of transformers. Where models are partitioned, this one comes with
        this rank's part alone, in ``dtype``.
        """

    def gathered(self, module: Any) -> AbstractContextManager[None]:
        """Within it a partitioned module computes although nothing trains it yet."""

    def train(self, module: Any, optimizer: Any) -> TrainedModel:
        """Make a model with its optimizer, of torch, ready to be trained."""

    def freeze(self, module: Any) -> Any:
        """Make a model ready for forward passes without gradients; returns what to call."""

    def share_sequences(self, policy: Any, size: int) -> SequenceGroup:
        """Put sequence parallelism over ``size`` ranks around the packed attention, of all models in this process.
        Raises ConfigError where the heads cannot be shared out.
        """

    def saved_tensors(self, folder: Path, zero_stage: int) -> dict[str, Tensor]:
        """Full tensors by name out of what ``TrainedModel.save`` wrote; needs no process group. Raises OSError,
        RuntimeError, ValueError or LookupError.
        """
