"""Bytes of a model that one learner rank trains, as ZeRO lays it out: what stays, and what an optimizer step needs
for a while. N numbers are trained by R ranks, w bytes each in the model's number type::

                      ZeRO 1, bfloat16    ZeRO 1, float32   ZeRO 2     ZeRO 3
    parameters        w N                 w N               w N        w N / R
    gradients         4 N, in a pass w N more   4 N in a pass   4 N / R in a pass   4 N / R
    float32 master    4 N / R             4 N / R           4 N / R    4 N / R
    Adam              8 N / R             8 N / R           8 N / R    8 N / R

Where the optimizer is in host memory, ZeRO 1 in bfloat16 is laid out as in float32, and the host has the last three.

An optimizer step has moments that need more. "pass": activations, and the temporaries of a layer's backward pass.
"logits": those and the gradient of the output layer. "reduce": a bucket of gradients and its copy on the way to the
ranks that keep them. "step": under ZeRO 3 a copy of a part's gradients. The largest counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from overlap.placement.activations import activation_bytes
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
"""Of a pass over full tensors under ZeRO 3 (``overlap.weights.full``)."""
CHUNK = 1 << 30
"""Of a buffer in which weights travel, unless a single tensor is larger (``overlap.weights.cuda``, vLLM's for nccl)."""

OPTIMIZER = ("gradients", "float32 master", "Adam")
"""Items that ZeRO-Offload has in the machine's memory."""

Items = dict[str, int]


@dataclass(frozen=True, slots=True)
class Trained:
    """A model under ZeRO. ``parameters`` are held, ``trained`` of them learn; ``head`` says whether logits are
    made; ``tokens`` are those of one rank's pass. On a GPU (``reserves``) a bucket has its place before it is full.
    ``offloaded``: the optimizer is in host memory (ZeRO-Offload).
    """

    shape: ModelShape
    parameters: int
    trained: int
    width: int
    ranks: int
    stage: int
    tokens: int
    checkpointing: bool
    head: bool
    reserves: bool
    offloaded: bool = False

    @property
    def whole(self) -> int:
        """Bytes of the parameters together."""
        return self.width * self.parameters

    @property
    def own(self) -> int:
        """Bytes of the parameters that a rank holds."""
        return self.whole // self.ranks if self.stage == 3 else self.whole

    def states(self) -> Items:
        """What stays between two steps."""
        n = self.trained
        kept = {1: 4 * n if self.width < 4 else 0, 2: 0, 3: 4 * n // self.ranks}[self.stage]
        return {
            "parameters": self.own,
            "gradients": 4 * n // self.ranks if self.offloaded else kept,
            "float32 master": 4 * n // self.ranks,
            "Adam": 8 * n // self.ranks,
            "gradient bucket": self._bucket if self.stage == 3 else 0,
        }

    def here(self) -> Items:
        """What of the states is on a rank's device."""
        return {name: size for name, size in self.states().items() if not self.offloaded or name not in OPTIMIZER}

    def made(self) -> Items:
        """While it is loaded and laid out: Adam's states come with the first step. Under ZeRO 1 and 2 what learns is
        there twice for a moment, under ZeRO 3 with what is read at once; the optimizer's states come after that.
        """
        read = self.width * self.trained if self.stage < 3 else self.gathered_whole()["gather bucket"]
        bucket = self._bucket if self.stage == 3 and self.reserves else 0
        laid = self.here() | {"Adam": 0, "gradient bucket": bucket}
        loaded = {"parameters": self.own, "loading": read}
        return max(laid, loaded, key=lambda items: sum(items.values()))

    @property
    def _bucket(self) -> int:
        """Gradients travel in float32."""
        return 4 * (BUCKET if self.reserves else min(self.trained, BUCKET))

    def moments(self) -> tuple[Items, ...]:
        """What a step holds beside ``states``, at each moment that may be its largest."""
        return self._pass(), self._logits(), self._reduce(), self._step()

    def _summed(self) -> Items:
        """Gradients of the micro-batches before, beside those that stay."""
        n, r = self.trained, self.ranks
        halves = self.width < 4 and not self.offloaded
        summed = {1: self.width * n if halves else 4 * n, 2: 0 if self.offloaded else 4 * n // r, 3: 0}[self.stage]
        bucket = self._bucket if self.stage == 2 and self.reserves else 0
        return {"gradients": summed, "gradient bucket": bucket}

    def _gathered(self, at_least: int) -> Items:
        if self.stage < 3:
            return {}
        return {"gather bucket": self.width * max(min(self.parameters, LIVE), at_least)}

    def _pass(self) -> Items:
        d = self.shape.decoder
        kept = activation_bytes(d, self.tokens, width=self.width, checkpointing=self.checkpointing)
        backward = self.width * self.tokens * (3 * d.inner + 4 * d.hidden)
        items = {"activations": kept, "a layer's backward": backward} | self._summed() | self._gathered(0)
        if self.reserves and self.stage > 1 and self.trained > BUCKET:  # the first bucket is full when layers are left
            items["gradient bucket"] = items.get("gradient bucket", 0) + 4 * BUCKET
        return items

    def _logits(self) -> Items:
        d, t, w = self.shape.decoder, self.tokens, self.width
        kept = activation_bytes(d, t, width=w, checkpointing=self.checkpointing)
        if self.checkpointing:  # no layer is computed again yet
            kept = t * d.layers * w * d.hidden
        items = {"activations": kept + 3 * w * t * d.hidden} | self._summed() | self._gathered(0)
        if not self.head:
            return items | {"values": 8 * t * d.hidden}
        weight = self.shape.vocabulary * d.hidden
        rows = LOGITS // (2 * max(1, self.shape.vocabulary))
        gradient = w * weight if t <= rows else max(w, 4) * weight + (2 * w if w < 4 else w) * weight
        if self.trained < self.parameters:  # by adapters, of which the output layer has none
            gradient = 0
        block = w * min(t, rows) * self.shape.vocabulary
        return items | {"logits": block + CHUNKS[self.reserves] + gradient} | self._gathered(weight)

    def _reduce(self) -> Items:
        """At the end of a pass, when activations are gone."""
        if self.stage == 1 and self.width < 4 and not self.offloaded:
            return {"gradients": self.width * self.trained}
        single = (4 + self.width) * self.shape.largest if self.shape.largest > BUCKET else 0
        copied = max(4 * min(self.trained, BUCKET), single)
        if self.stage == 3 and not self.reserves:
            copied += copied // self.ranks  # gloo scatters into memory of its own
        bucket = copied + (0 if self.stage == 3 else self._bucket)
        return {"gradients": self._summed()["gradients"], "gradient bucket": bucket} | self._gathered(0)

    def probed(self) -> Items:
        """While the policy reads one sequence and keeps nothing of it (the parity check)."""
        d, t = self.shape.decoder, self.tokens
        logits = self.width * min(t * self.shape.vocabulary, LOGITS // 2) + CHUNKS[self.reserves]
        held = {"activations": self.width * t * (3 * d.inner + 4 * d.hidden), "logits": logits}
        return held | self._gathered(self.shape.vocabulary * d.hidden)

    def gathered_whole(self) -> Items:
        """While full tensors are made of a rank's parts, to be sent or saved."""
        bucket = min(self.whole, max(GATHER, self.width * self.shape.largest))
        return {"gather bucket": bucket if self.stage == 3 else 0}

    def _step(self) -> Items:
        if self.stage < 3:
            return {"gradients": self._summed()["gradients"]}
        return {"gradients' copy": 4 * min(self.trained // self.ranks, SUB_GROUP + self.shape.largest // self.ranks)}


def transfer_bytes(backend: str, whole: int, largest: int, *, engine: bool) -> int:
    """Buffers in which weights of ``whole`` bytes travel, bytes on a rank's GPU or on each of an ``engine``. By ipc a
    rank has one, which holds the ``largest`` tensor, and an engine copies what is in there. Over nccl two are underway,
    and a rank fills a third; the tensor that is too much for one is still in it.
    """
    if backend == "ipc":
        return max(largest, min(CHUNK, whole))
    return min((2 if engine else 3) * CHUNK + largest, whole) if backend == "nccl" else 0
