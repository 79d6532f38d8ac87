"""Bytes of a model that one learner rank trains, as ZeRO lays it out. N numbers are trained by R ranks, w bytes each in
the model's number type::

                      ZeRO 1, bfloat16    ZeRO 1, float32   ZeRO 2     ZeRO 3
    weights           w N                 w N               w N        w N / R
    gradients         4 N, in a pass w N more   4 N in a pass   4 N / R in a pass   4 N / R
    master and Adam   12 N / R            12 N / R          12 N / R   12 N / R

Where the optimizer is in host memory, ZeRO 1 in bfloat16 is laid out as in float32, and the host has the last two.
Beside that an optimizer step has activations, then buckets of gradients on their way between ranks, then under ZeRO 3 a
copy of a part's gradients; the largest counts.
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
"""Bytes of a pass over full tensors under ZeRO 3 (``overlap.weights.full``)."""
CHUNK = 1 << 30
"""Bytes of a buffer for weights on their way, if no tensor is larger (``overlap.weights.cuda``, vLLM's for nccl)."""
WEIGHTS, GRADIENTS, OPTIMIZER, ACTIVATIONS, BUCKETS = (
    "weights",
    "gradients",
    "master and Adam",
    "activations",
    "ZeRO's buckets",
)

Items = dict[str, int]


def item_sums(*parts: Items) -> Items:
    """The sum of some items, name by name."""
    return {name: sum(part.get(name, 0) for part in parts) for name in dict.fromkeys(n for part in parts for n in part)}


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
        return {
            WEIGHTS: self.own,
            GRADIENTS: 4 * n // r if self.offloaded else kept,
            OPTIMIZER: 12 * n // r,
            BUCKETS: self._bucket if self.stage == 3 else 0,
        }

    def on_device(self) -> Items:
        """States that are on a rank's device."""
        states = self.states()
        return states | {GRADIENTS: 0, OPTIMIZER: 0} if self.offloaded else states

    def step(self) -> Items:
        """Bytes that an optimizer step holds on a rank's device in its largest moment."""
        n, r, halves = self.trained, self.ranks, self.width < 4 and not self.offloaded
        summed = {1: (self.width if halves else 4) * n, 2: 0 if self.offloaded else 4 * n // r, 3: 0}[self.stage]
        waits = self._bucket if self.stage == 2 and self.on_gpu else 0
        full = 4 * BUCKET if self.on_gpu and self.stage > 1 and n > BUCKET else 0  # the first, when layers are left
        moments: list[Items] = [
            {ACTIVATIONS: self._backward(), BUCKETS: waits + full + self._gathered(0)},
            {ACTIVATIONS: self._output(), BUCKETS: waits + self._gathered(self._head_numbers())},
            {BUCKETS: self._reduced() + self._gathered(0)},
        ]
        if self.stage == 3:
            moments.append({GRADIENTS: 4 * min(n // r, SUB_GROUP + self.shape.largest // r)})
        largest = max(moments, key=lambda moment: sum(moment.values()))
        return item_sums(self.on_device(), {GRADIENTS: summed}, largest)

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
        rows = LOGITS // (2 * max(1, self.shape.vocabulary))
        weight = self._head_numbers()
        gradient = w * weight if t <= rows else max(w, 4) * weight + (2 * w if w < 4 else w) * weight
        learned = gradient if self.trained == self.parameters else 0  # adapters have none of the output layer
        return kept + w * min(t, rows) * self.shape.vocabulary + CHUNKS[self.on_gpu] + learned

    def _head_numbers(self) -> int:
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
        return {ACTIVATIONS: read, BUCKETS: self._gathered(self.shape.vocabulary * d.hidden)}

    def gathered_whole(self) -> int:
        """Bytes while full tensors are made of a rank's parts, to be sent or saved."""
        bucket = min(self.width * self.parameters, max(GATHER, self.width * self.shape.largest))
        return bucket if self.stage == 3 else 0


def transfer_bytes(backend: str, whole: int, largest: int, *, engine: bool) -> int:
    """Buffers in which weights of ``whole`` bytes travel, bytes on a rank's GPU or on each of an ``engine``. By ipc a
    rank has one, which holds the ``largest`` tensor, and an engine copies what is in there. Over nccl two are underway,
    and a rank fills a third; the tensor that is too much for one is still in it.
    """
    if backend == "ipc":
        return max(largest, min(CHUNK, whole))
    return min((2 if engine else 3) * CHUNK + largest, whole) if backend == "nccl" else 0
