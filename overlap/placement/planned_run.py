"""Input of a memory plan: a run by its models' shapes, and the seats on each device; and the bytes of a model that one
learner rank trains, as ZeRO lays it out. N numbers are trained by R ranks, w bytes each in the model's number type::

                      ZeRO 1, bfloat16    ZeRO 1, float32   ZeRO 2     ZeRO 3
    weights           w N                 w N               w N        w N / R
    gradients         4 N, in a pass w N more   4 N in a pass   4 N / R in a pass   4 N / R
    master and Adam   12 N / R            12 N / R          12 N / R   12 N / R

Where the optimizer is in host memory, ZeRO 1 in bfloat16 is laid out as in float32, and the host has the last two.
Beside that an optimizer step has activations, then buckets of gradients on their way between ranks, then under ZeRO 3 a
copy of a part's gradients; the largest counts.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from overlap.config.fields import Config
from overlap.placement.activations import activation_bytes, recomputes, trained_parameters
from overlap.placement.shapes import ModelShape

BUCKET = 500_000_000
"""Gradients that ZeRO reduces at once, numbers (``reduce_bucket_size``)."""
LIVE = 1_000_000_000
"""Parameters that ZeRO 3 holds gathered in a pass, numbers (``stage3_max_live_parameters``)."""
SUB_GROUP = 1_000_000_000
"""Numbers that ZeRO 3 steps at once (``sub_group_size``)."""
LOGITS = 512 << 20
"""Logits of one block at 2 bytes each (``overlap.learner.head``)."""
CHUNKS = {False: 3 * (24 << 20), True: 3 * (256 << 20)}
"""Float32 chunks of it and their copies on a CPU, and on a GPU, where compiled kernels make none."""
GATHER = 256 << 20
"""Bytes of a pass over full tensors under ZeRO 3 (``overlap.weights.full``)."""
CHUNK = 1 << 30
"""Bytes of a buffer for weights on their way, if no tensor is larger (``overlap.weights.cuda``, vLLM's for nccl)."""
WEIGHTS, GRADIENTS, OPTIMIZER = "weights", "gradients", "master and Adam"
ACTIVATIONS, BUCKETS = "activations", "ZeRO's buckets"
Items = Counter[str]
"""Bytes by what they are for."""
Model = Literal["actor", "critic"]


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
class Trained:
    """A model under ZeRO. ``parameters`` are held, ``trained`` of them learn; ``head`` says whether logits are made;
    ``tokens`` are those of one rank's pass. ``on_gpu`` a bucket has its place before it is full. ``offloaded``: the
    optimizer is in host memory (ZeRO-Offload).
    """

    shape: ModelShape
    parameters: int
    trained: int
    width: int
    ranks: int
    stage: int
    tokens: int
    recomputes: bool
    head: bool
    on_gpu: bool
    offloaded: bool = False

    @property
    def own(self) -> int:
        """Bytes of the weights that a rank holds."""
        whole = self.width * self.parameters
        return whole // self.ranks if self.stage == 3 else whole

    @property
    def _bucket(self) -> int:
        """Gradients travel in float32."""
        return 4 * (BUCKET if self.on_gpu else min(self.trained, BUCKET))

    def states(self) -> Items:
        """Bytes that stay between two steps, on the device or in host memory."""
        n, r = self.trained, self.ranks
        kept = {1: 4 * n if self.width < 4 else 0, 2: 0, 3: 4 * n // r}[self.stage]
        gradients, buckets = 4 * n // r if self.offloaded else kept, self._bucket if self.stage == 3 else 0
        return Items({WEIGHTS: self.own, GRADIENTS: gradients, OPTIMIZER: 12 * n // r, BUCKETS: buckets})

    def on_device(self) -> Items:
        """States that are on a rank's device."""
        states = self.states()
        for name in (GRADIENTS, OPTIMIZER) if self.offloaded else ():
            del states[name]
        return states

    def step(self) -> Items:
        """Bytes that an optimizer step holds on a rank's device in its largest moment."""
        n, r, halves = self.trained, self.ranks, self.width < 4 and not self.offloaded
        summed = {1: (self.width if halves else 4) * n, 2: 0 if self.offloaded else 4 * n // r, 3: 0}[self.stage]
        waits = self._bucket if self.stage == 2 and self.on_gpu else 0
        full = 4 * BUCKET if self.on_gpu and self.stage > 1 and n > BUCKET else 0  # the first, when layers are left
        moments = [
            Items({ACTIVATIONS: self._backward(), BUCKETS: waits + full + self._gathered(0)}),
            Items({ACTIVATIONS: self._output(), BUCKETS: waits + self._gathered(self._head)}),
            Items({BUCKETS: self._reduced() + self._gathered(0)}),
            Items({GRADIENTS: 4 * min(n // r, SUB_GROUP + self.shape.largest // r) if self.stage == 3 else 0}),
        ]
        return self.on_device() + Items({GRADIENTS: summed}) + max(moments, key=Items.total)

    def _backward(self) -> int:
        """Activations with the temporaries of a layer's backward pass."""
        d, t = self.shape.decoder, self.tokens
        kept = activation_bytes(d, t, width=self.width, recomputes=self.recomputes)
        return kept + self.width * t * (3 * d.inner + 4 * d.hidden)

    def _output(self) -> int:
        """Activations with logits and gradient of the output layer, when no layer is computed again yet."""
        d, t, w = self.shape.decoder, self.tokens, self.width
        kept = activation_bytes(d, t, width=w, recomputes=False)
        kept = (t * d.layers * w * d.hidden if self.recomputes else kept) + 3 * w * t * d.hidden
        if not self.head:
            return kept + 8 * t * d.hidden
        rows, weight = LOGITS // (2 * max(1, self.shape.vocabulary)), self._head
        gradient = w * weight if t <= rows else max(w, 4) * weight + (2 * w if w < 4 else w) * weight
        learned = gradient if self.trained == self.parameters else 0  # adapters have none of the output layer
        return kept + w * min(t, rows) * self.shape.vocabulary + CHUNKS[self.on_gpu] + learned

    @property
    def _head(self) -> int:
        """Numbers of the output layer."""
        return self.shape.vocabulary * self.shape.decoder.hidden if self.head else 0

    def _gathered(self, at_least: int) -> int:
        return self.width * max(min(self.parameters, LIVE), at_least) if self.stage == 3 else 0

    def _reduced(self) -> int:
        """Buckets at the end of a pass, when activations are gone."""
        if self.stage == 1 and self.width < 4 and not self.offloaded:
            return 0
        single = (4 + self.width) * self.shape.largest if self.shape.largest > BUCKET else 0
        copied = max(4 * min(self.trained, BUCKET), single)
        if self.stage == 3:
            return copied if self.on_gpu else copied + copied // self.ranks  # gloo scatters into memory of its own
        return copied + self._bucket

    def probed(self) -> Items:
        """Reading one sequence, of which nothing is kept (the parity check)."""
        d, t = self.shape.decoder, self.tokens
        logits = self.width * min(t * self.shape.vocabulary, LOGITS // 2) + CHUNKS[self.on_gpu]
        read = self.width * t * (3 * d.inner + 4 * d.hidden) + logits
        return Items({ACTIVATIONS: read, BUCKETS: self._gathered(self.shape.vocabulary * d.hidden)})

    def gathered_whole(self) -> int:
        """Bytes while full tensors are made of a rank's parts, to be sent or saved."""
        bucket = min(self.width * self.parameters, max(GATHER, self.width * self.shape.largest))
        return bucket if self.stage == 3 else 0


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
    def engine_adapter(self) -> Items:
        """Bytes that an engine has beside its weights for adapters, on each of its GPUs at most."""
        learn = self.cfg.learn
        return Items(
            {"adapter": self.adapters * learn.engine_rank // learn.lora_rank} if self.cfg.sends_adapter else {}
        )

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
            head=what == "actor", on_gpu=on_gpu, offloaded=on_gpu and learn.offload == "cpu",
        )  # fmt: skip


def transfer_bytes(backend: str, whole: int, largest: int, *, engine: bool) -> int:
    """Buffers in which weights of ``whole`` bytes travel, bytes on a rank's GPU or on each of an ``engine``. By ipc a
    rank has one, which holds the ``largest`` tensor, and an engine copies what is in there. Over nccl two are underway,
    and a rank fills a third; the tensor that is too much for one is still in it.
    """
    if backend == "ipc":
        return max(largest, min(CHUNK, whole))
    return min((2 if engine else 3) * CHUNK + largest, whole) if backend == "nccl" else 0
