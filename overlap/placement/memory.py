"""What a run needs in memory, before anything is started: bytes by place, phase, process and item. Pure functions.

A place is a GPU, or on a machine without one the machine, whose memory all processes share. Phases are those that a
place lives through::

    start      engine and learner are made
    generate   the engine samples; a checkpoint may be written meanwhile, for which sleeping parameters come back
    sync       new weights go from the learner into the engine
    critic     the critic takes its optimizer step, if there is one
    actor      the policy takes its own

Engine and learner on the same GPUs take turns: who is not in a phase sleeps. What of the learner's states leaves a GPU
then is a matter of ``Offload``. While the engine samples, checkpoints are written: what sleeps of them on the host is
read there, but parameters come back for so long.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, get_args

from overlap.config import Config
from overlap.placement.activations import checkpoints, trained_parameters
from overlap.placement.learner import OPTIMIZER, Items, Trained, transfer_bytes
from overlap.placement.shapes import ModelShape

Phase = Literal["start", "generate", "sync", "critic", "actor"]
PHASES: tuple[Phase, ...] = get_args(Phase)
Model = Literal["actor", "critic"]
Offload = Literal["none", "sleep", "cpu"]

GIB = 2**30
MACHINE, HOST = "machine", "host"
"""Places that are no GPU: a machine without one, and the memory beside GPUs."""
CPU_BLOCK_TOKENS = 32
"""Tokens in a KV block on a CPU: shared prompts are found by whole blocks, and the kernels want multiples of 32."""

GPU_OWN = 1536 << 20
"""Of a process on a GPU: CUDA's context, libraries and NCCL's buffers. Not measured here."""
WORKSPACE = 2_500_000_000
"""Of an engine on a GPU: what a prefill needs, and CUDA graphs. Not measured here."""
ASLEEP = 1 << 30
"""Of that, what an engine keeps while it sleeps: CUDA graphs. Not measured here."""
USABLE = 0.96
"""Part of a GPU's memory that a plan may use up: CUDA has less of it to give than the driver names, and freed pieces do
not always fit together. Not measured here."""
RANK_OWN = 450_000_000
"""Of a rank on a CPU: threads, and what libraries keep; their files, which can be read again, are not counted."""
HEAP = "heap"
"""Item of a rank on a CPU: holes in memory that is never given back (``overlap.learner.processes``). How large they get
depends on the samples, so a run is not refused for them."""
HEAP_FACTOR = 2
"""Resident bytes of such a rank after some steps, by the most in use. Two runs of the default policy had that."""
ENGINE_OWN = 1_600_000_000
"""Of an engine on a CPU, all of its processes; estimated by what one of the default policy had resident."""


@dataclass(frozen=True, slots=True)
class Seats:
    """Who sits where. ``devices`` are the bytes of each GPU (0: not known), none on a CPU; ``engines`` the GPUs of each
    engine; ``ranks`` the GPU of each learner rank. They may take ``turns``, the engine asleep while the learner learns.
    ``host`` is the machine's memory that is free, bytes (0: not known). ``first`` is the number of the first of these
    ranks; ``copies`` of the weights are kept here for those who get only what has changed in them.
    """

    devices: tuple[int, ...]
    engines: tuple[tuple[int, ...], ...]
    ranks: tuple[int, ...]
    turns: bool
    backend: str
    host: int = 0
    first: int = 0
    copies: int = 0


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """What is planned. Without an ``engine`` a run learns from kept samples."""

    cfg: Config
    policy: ModelShape
    critic: ModelShape | None = None
    engine: bool = True
    reference: ModelShape | None = None
    """Of ``learn.reference``; None: the policy's."""

    @property
    def offload(self) -> Offload:
        return self.cfg.learn.offload

    @property
    def width(self) -> int:
        """Bytes of a number of the policy."""
        return 2 if self.cfg.model.dtype == "bfloat16" else 4

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
        """What an engine has beside its weights for adapters, on each of its GPUs at most."""
        learn = self.cfg.learn
        return {"adapter": self.adapters * learn.engine_rank // learn.lora_rank} if self.cfg.sends_adapter else {}

    @property
    def kv_token(self) -> int:
        """Bytes of a token in the KV cache on each GPU of an engine: at most as many as heads of keys share it."""
        parallel = self.cfg.rollout.tensor_parallel
        return -(
            -token_bytes(self.policy, kv_number_bytes(self.cfg)) // min(parallel, self.policy.key_heads or parallel)
        )

    @property
    def models(self) -> tuple[Model, ...]:
        """Those that are trained."""
        return ("actor",) if self.critic is None else ("actor", "critic")

    def trained(self, what: Model, *, reserves: bool) -> Trained:
        """The policy or the critic, as a rank trains it."""
        learn = self.cfg.learn
        shape = self.policy if what == "actor" or self.critic is None else self.critic
        again = checkpoints(learn.checkpointing, shape.decoder, learn.rank_tokens, width=self.width)
        parameters = trained = shape.parameters if what == "actor" else shape.trunk
        if what == "actor" and learn.lora_rank:
            trained = trained_parameters(shape.decoder, parameters, learn.lora_rank)
            parameters += trained
        return Trained(
            shape, parameters, trained, self.width, learn.ranks, learn.zero_stage, learn.rank_tokens, again,
            head=what == "actor", reserves=reserves, offloaded=reserves and self.offload == "cpu",
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Use:
    """What a process holds at a place in a phase, at the largest moment of the phase."""

    process: str
    place: str
    phase: Phase
    items: Mapping[str, int]

    @property
    def total(self) -> int:
        return sum(self.items.values())


@dataclass(frozen=True, slots=True)
class Shortage:
    """A place that would need more bytes in a phase than are ``there`` to be used; ``what`` has no room in its share
    ("": all).
    """

    phase: Phase
    place: str
    wanted: int
    there: int
    what: str = ""


@dataclass(frozen=True)
class MemoryPlan:
    """``there`` are the bytes of the places that are known."""

    uses: tuple[Use, ...]
    there: Mapping[str, int]
    engine_shortage: Shortage | None = None

    @cached_property
    def places(self) -> tuple[str, ...]:
        return tuple(sorted(dict.fromkeys(use.place for use in self.uses), key=lambda place: place == HOST))

    def at(self, place: str, phase: Phase) -> tuple[Use, ...]:
        return tuple(use for use in self.uses if (use.place, use.phase) == (place, phase))

    def total(self, place: str, phase: Phase) -> int:
        """Bytes."""
        return sum(use.total for use in self.at(place, phase))

    def in_use(self, place: str, phase: Phase) -> int:
        """Bytes, holes in a heap left out: what a run is refused for."""
        return sum(use.total - use.items.get(HEAP, 0) for use in self.at(place, phase))

    def fullest(self, place: str) -> Phase:
        """The phase in which most is in use there."""
        return max(PHASES, key=lambda phase: self.in_use(place, phase))

    def most(self, place: str) -> int:
        """Bytes in that phase."""
        return self.total(place, self.fullest(place))

    def shortage(self) -> Shortage | None:
        """The worst one, None where everything fits that is known."""
        known = ((self.in_use(place, phase), usable(place, there), place, phase) for place, there in self.there.items()
                 for phase in PHASES if there)  # fmt: skip
        used, there, place, phase = max(known, key=lambda one: one[0] - one[1], default=(0, 0, "", "start"))
        if used <= there:
            return self.engine_shortage
        return Shortage(phase, place, used, there)


def memory_plan(run: PlannedRun, seats: Seats) -> MemoryPlan:
    """The plan of a run by its configuration, its models' shapes and its seats."""
    if not seats.devices:
        uses = tuple(use for phase in PHASES for use in _on_machine(run, seats, phase))
        return MemoryPlan(uses, {MACHINE: seats.host})
    uses = tuple(use for phase in PHASES for use in _on_gpus(run, seats, phase))
    there = {gpu(number): size for number, size in enumerate(seats.devices)}
    return MemoryPlan(uses, there | {HOST: seats.host}, _engine_shortage(run, seats))


def gpu(number: int) -> str:
    """The name of a place."""
    return f"GPU {number}"


def usable(place: str, size: int) -> int:
    """Bytes that a plan may use up of a place that has ``size``."""
    return size if place in (HOST, MACHINE) else int(USABLE * size)


# --- engines ------------------------------------------------------------------------------------------------


def token_bytes(shape: ModelShape, width: int) -> int:
    """Bytes that a token leaves in the KV cache."""
    return shape.decoder.layers * shape.kv_width * width


def kv_number_bytes(cfg: Config) -> int:
    """Bytes of a number in the KV cache. A type of less than a byte is planned with one, its scales among it."""
    options, own = cfg.rollout.engine, 2 if cfg.model.dtype == "bfloat16" else 4
    if options.get("kv_cache_dtype_skip_layers"):
        return own  # nobody counted which layers those are
    return {"auto": own, "bfloat16": 2, "float16": 2}.get(str(options.get("kv_cache_dtype") or "auto"), 1)


def cpu_block_tokens(cfg: Config) -> int:
    """Tokens in a KV block of an engine on a CPU."""
    return int(cfg.rollout.engine.get("block_size") or CPU_BLOCK_TOKENS)


def kv_cache_bytes(
    token: int, context_tokens: int, max_sequences: int, available: int, block_tokens: int = CPU_BLOCK_TOKENS
) -> int:
    """KV cache on a CPU for ``max_sequences`` full contexts at ``token`` bytes a token; where less memory is
    ``available`` half of that, but never below one of them.
    """
    blocks = -(-context_tokens // block_tokens) + 1
    block = token * block_tokens
    room = available // 2 // block if block else 0  # the sizes of some families are not known
    return block * (8 + max(blocks, min(blocks * max_sequences, room)))


def kv_room(run: PlannedRun, size: int) -> int:
    """Bytes of the KV cache on each GPU of an engine, by ``rollout.gpu_memory`` of ``size``. May be below 0."""
    r = run.cfg.rollout
    if not size:
        return run.kv_token * r.at_once * run.cfg.context_tokens
    held = run.weights // r.tensor_parallel + sum(run.engine_adapter.values())
    return int(r.gpu_memory * size) - held - WORKSPACE


def kv_tokens(run: PlannedRun, size: int) -> int:
    """Tokens that the KV cache of an engine holds on GPUs of ``size`` bytes."""
    return max(0, kv_room(run, size)) // run.kv_token if run.kv_token else 0


def _engine_shortage(run: PlannedRun, seats: Seats) -> Shortage | None:
    """An engine does not start whose KV cache cannot hold one full sequence."""
    r = run.cfg.rollout
    sizes = [size for engine in seats.engines for device in engine if (size := seats.devices[device])]
    if not (run.engine and sizes):
        return None
    missing = run.kv_token * run.cfg.context_tokens - kv_room(run, min(sizes))
    if missing <= 0:
        return None
    there = int(r.gpu_memory * min(sizes))
    what = f"an engine with one sequence of {run.cfg.context_tokens:,} tokens"
    return Shortage("generate", gpu(seats.engines[0][0]), there + missing, there, what)


def _engine_items(run: PlannedRun, size: int, state: Literal["awake", "weights", "asleep"]) -> Items:
    """On one GPU: with all that it needs, woken for its weights alone, or asleep."""
    if state == "asleep":
        return {"own": GPU_OWN, "workspace": ASLEEP}
    weights = run.weights // run.cfg.rollout.tensor_parallel
    items = {"own": GPU_OWN, "workspace": WORKSPACE, "engine weights": weights, **run.engine_adapter}
    return items if state == "weights" else items | {"KV cache": max(0, kv_room(run, size))}


# --- GPUs ---------------------------------------------------------------------------------------------------


def _on_gpus(run: PlannedRun, seats: Seats, phase: Phase) -> Iterator[Use]:
    """An engine that takes turns sleeps while the learner learns, and takes its KV cache after its weights. It starts
    before the learner does, and sleeps. Weights that an adapter is beside are in the machine's memory then, and keep
    their place there.
    """
    if phase == "critic" and run.critic is None:
        return
    state: Literal["awake", "weights", "asleep"] = "awake"
    if seats.turns and phase != "generate":
        state = "weights" if phase == "sync" else "asleep"
    for number, devices in enumerate(seats.engines if run.engine else ()):
        for device in devices:
            items = _engine_items(run, seats.devices[device], state)
            if phase == "sync":
                items |= {"transfer buffer": transfer_bytes(seats.backend, *run.sent, engine=True)}
            yield Use(f"engine {number}", gpu(device), phase, items)
            if seats.turns and run.engine_adapter:
                kept = run.weights // run.cfg.rollout.tensor_parallel + sum(run.engine_adapter.values())
                yield Use(f"engine {number}", HOST, phase, {"sleeping weights": kept})
    for rank, device in enumerate(seats.ranks):
        held, away = _rank_items(run, seats, phase)
        yield Use(f"rank {rank}", gpu(device), phase, held | {"own": GPU_OWN})
        if away:
            yield Use(f"rank {rank}", HOST, phase, {"offloaded states": away})


def _rank_items(run: PlannedRun, seats: Seats, phase: Phase) -> tuple[Items, int]:
    """What a rank holds on its GPU, and how many bytes in the machine's memory, which is kept once it is taken."""
    held, away = Items(), 0
    for what in run.models:
        model = run.trained(what, reserves=True)
        reference = _reference(run) if what == "actor" else {}
        states, here = model.states() | reference, model.here() | reference
        leaves, rests = _leaves(run.offload, turns=seats.turns), run.offload != "none" and seats.turns
        if rests and phase != what:
            back = phase == "generate" or (what, phase) == ("actor", "sync")
            stay = {"parameters", "reference"} if back else set()
            here = {name: size for name, size in here.items() if name in stay}
        if phase == "start":
            here = model.made() | reference
        elif phase == what:
            here = largest(here, (*model.moments(), *_referred(run, what)))
        elif (what, phase) == ("actor", "sync"):
            here = largest(here, (_travel(run, model, seats.backend), model.probed()))
        elif what == "actor" and phase == "generate":
            here = largest(here, (model.gathered_whole(),))
        held |= _named(here, what, phase)
        away += 0 if phase == "start" else sum(size for name, size in states.items() if name in leaves)
    return held, away


def _leaves(offload: Offload, *, turns: bool) -> set[str]:
    """What of a model's states has a copy in the machine's memory. Gradients and their buffers that only wait for their
    next use are given up without one.
    """
    if offload == "none":
        return set()
    resting = {"parameters", "reference"} if turns else set()
    if offload == "sleep":
        return resting | ({"float32 master", "Adam"} if turns else set())
    return resting | set(OPTIMIZER)


def _named(items: Items, what: Model, phase: Phase) -> Items:
    """A phase is the critic's own, or else the policy's: what the other one holds is called by its name."""
    if (what == "critic") == (phase == "critic"):
        return items
    return {"critic's states" if what == "critic" else "policy's states": sum(items.values())}


def _reference(run: PlannedRun) -> Items:
    """The reference policy, on each rank."""
    learn, weights = run.cfg.learn, run.width * (run.reference or run.policy).parameters
    if not learn.own_reference:
        return {}
    return {"reference": weights // learn.ranks if learn.zero_stage == 3 else weights}


def _referred(run: PlannedRun, what: Model) -> tuple[Items, ...]:
    """While a reference policy, which may be the larger one, reads a micro-batch."""
    if what == "critic" or run.reference is None:
        return ()
    model, shape = run.trained(what, reserves=True), run.reference
    return (replace(model, shape=shape, parameters=shape.parameters, trained=0).probed(),)


def _travel(run: PlannedRun, model: Trained, backend: str) -> Items:
    """What full tensors and their way into the engine need on a rank's device."""
    size = transfer_bytes(backend, *run.sent, engine=False)
    return model.gathered_whole() | {"transfer buffer": size}


def largest(states: Items, moments: Iterable[Items]) -> Items:
    """States and what the largest moment adds to them, item by item."""
    added = max(moments, key=lambda moment: sum(moment.values()))
    return {name: states.get(name, 0) + added.get(name, 0) for name in dict.fromkeys((*states, *added))}


# --- a machine without GPUs ---------------------------------------------------------------------------------


def _on_machine(run: PlannedRun, seats: Seats, phase: Phase) -> Iterator[Use]:
    """Nobody sleeps, and nothing is offloaded."""
    if phase == "critic" and run.critic is None:
        return
    if run.engine:
        token, each = token_bytes(run.policy, kv_number_bytes(run.cfg)), seats.host // max(1, len(seats.engines))
        block = cpu_block_tokens(run.cfg)
        cache = kv_cache_bytes(token, run.cfg.context_tokens, run.cfg.rollout.at_once, each, block)
        items = {"own": ENGINE_OWN, "engine weights": run.weights, **run.engine_adapter, "KV cache": cache}
        for number in range(len(seats.engines)):
            yield Use(f"engine {number}", MACHINE, phase, items)
    if seats.copies and phase != "start":
        yield Use("agents", MACHINE, phase, {"transfer buffer": seats.copies * run.sent[0]})
    for rank in range(seats.first, seats.first + len(seats.ranks)):
        held = rank_on_cpu(run, phase, rank)
        if phase != "start":
            most = max(sum(rank_on_cpu(run, model, rank).values()) for model in run.models)
            held[HEAP] = HEAP_FACTOR * most - sum(held.values())
        yield Use(f"rank {rank}", MACHINE, phase, {"own": RANK_OWN} | held)


def rank_on_cpu(run: PlannedRun, phase: Phase, rank: int) -> Items:
    """What a rank holds, its own bytes left out. Rank 0 keeps a copy of the weights for the engine to map."""
    held = Items()
    for what in run.models:
        model = run.trained(what, reserves=False)
        here = model.made() if phase == "start" else model.states()
        if phase == what:
            here = largest(here, (*model.moments(), *_referred(run, what)))
        elif what == "actor" and phase == "sync":
            here = largest(here, (_travel(run, model, "shm"), model.probed()))
        held |= _named(here, what, phase)
    if run.engine and rank == 0 and phase != "start":
        held["transfer buffer"] = run.sent[0]
    return held | _reference(run)
