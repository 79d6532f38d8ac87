"""Input of a memory plan: a run by its models' shapes, and the seats on each device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from overlap.config.fields import Config
from overlap.placement.activations import recomputes, trained_parameters
from overlap.placement.learner import Trained
from overlap.placement.shapes import ModelShape

Model = Literal["actor", "critic"]
Offload = Literal["none", "sleep", "cpu"]


def number_bytes(cfg: Config) -> int:
    """Bytes of a number of the policy."""
    return 2 if cfg.dtype == "bfloat16" else 4


@dataclass(frozen=True, slots=True)
class Seats:
    """Seats on devices. ``devices`` are the bytes of each GPU (0: not known), none on a CPU; ``engines`` the GPUs of
    each engine; ``ranks`` the GPU of each learner rank. They may take ``turns``, the engine asleep while the learner
    learns. ``host`` is the machine's memory that is free, ``shared`` the size of its /dev/shm, bytes (0: not known).
    ``first`` is the number of the first of these ranks; ``copies`` of the weights are kept here for receivers that get
    only what has changed in them.
    """

    devices: tuple[int, ...]
    engines: tuple[tuple[int, ...], ...]
    ranks: tuple[int, ...]
    turns: bool
    backend: str
    host: int = 0
    first: int = 0
    copies: int = 0
    shared: int = 0

    @property
    def shares_memory(self) -> bool:
        """Several GPUs communicate, which takes shared memory too."""
        several = any(len(engine) > 1 for engine in self.engines) or len(self.ranks) > 1
        return bool(self.devices) and (several or self.backend == "nccl")

    @property
    def smallest(self) -> int:
        """Bytes of the smallest GPU with an engine; 0 where there is none, or its bytes are not known."""
        return min((self.devices[device] for engine in self.engines for device in engine if self.devices), default=0)


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """The run that is planned. Without an ``engine`` a run learns from kept samples."""

    cfg: Config
    policy: ModelShape
    critic: ModelShape | None = None
    engine: bool = True
    reference: ModelShape | None = None
    """Shape of ``learn.reference``; None: the policy's."""

    @property
    def offload(self) -> Offload:
        return self.cfg.learn.offload

    @property
    def width(self) -> int:
        """Bytes of a number of the policy."""
        return number_bytes(self.cfg)

    @property
    def weights(self) -> int:
        """Bytes of the policy."""
        return self.width * self.policy.parameters

    @property
    def adapters(self) -> int:
        """Bytes of the policy's adapters; 0 where all weights are trained."""
        rank = self.cfg.learn.lora_rank
        return self.width * trained_parameters(self.policy.decoder, self.policy.parameters, rank) if rank else 0

    @property
    def sent(self) -> tuple[int, int]:
        """Bytes that a sync brings to an engine, and of the largest tensor of them."""
        if not self.cfg.sends_adapter:
            return self.weights, self.width * self.policy.largest
        shape = self.policy.decoder
        return self.adapters, self.width * self.cfg.learn.lora_rank * max(shape.hidden, shape.inner)

    @property
    def engine_adapter(self) -> Mapping[str, int]:
        """Bytes that an engine has beside its weights for adapters, on each of its GPUs at most."""
        learn = self.cfg.learn
        return {"adapter": self.adapters * learn.engine_rank // learn.lora_rank} if self.cfg.sends_adapter else {}

    @property
    def models(self) -> tuple[Model, ...]:
        """Models that are trained."""
        return ("actor",) if self.critic is None else ("actor", "critic")

    def trained(self, what: Model, *, on_gpu: bool) -> Trained:
        """The policy or the critic, as a rank trains it."""
        learn = self.cfg.learn
        shape = self.policy if what == "actor" or self.critic is None else self.critic
        again = recomputes(learn.recompute, shape.decoder, learn.rank_tokens, width=self.width)
        parameters = trained = shape.parameters if what == "actor" else shape.trunk
        if what == "actor" and learn.lora_rank:
            trained = trained_parameters(shape.decoder, parameters, learn.lora_rank)
            parameters += trained
        return Trained(
            shape, parameters, trained, self.width, learn.ranks, learn.zero_stage, learn.rank_tokens, again,
            head=what == "actor", on_gpu=on_gpu, offloaded=on_gpu and self.offload == "cpu",
        )  # fmt: skip
