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

from overlap.placement.engine_memory import engine_on_cpu, engine_on_gpu, engine_weights, gpu_token_bytes, kv_room
from overlap.placement.learner import OPTIMIZER, Items, Trained, transfer_bytes
from overlap.placement.planned_run import Model, Offload, PlannedRun, Seats

Phase = Literal["start", "generate", "sync", "critic", "actor"]
PHASES: tuple[Phase, ...] = get_args(Phase)

GIB = 2**30
MACHINE, HOST = "machine", "host"
"""Places that are no GPU: a machine without one, and the memory beside GPUs."""
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
GPU_OWN = 1536 << 20
"""Of a process on a GPU: CUDA's context, libraries and NCCL's buffers. Not measured here."""


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


def _engine_shortage(run: PlannedRun, seats: Seats) -> Shortage | None:
    """An engine does not start whose KV cache cannot hold one full sequence."""
    r = run.cfg.rollout
    sizes = [size for engine in seats.engines for device in engine if (size := seats.devices[device])]
    if not (run.engine and sizes):
        return None
    missing = gpu_token_bytes(run) * run.cfg.context_tokens - kv_room(run, min(sizes))
    if missing <= 0:
        return None
    there = int(r.gpu_memory * min(sizes))
    what = f"an engine with one sequence of {run.cfg.context_tokens:,} tokens"
    return Shortage("generate", gpu(seats.engines[0][0]), there + missing, there, what)


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
            items = engine_on_gpu(run, seats.devices[device], state) | {"own": GPU_OWN}
            if phase == "sync":
                items |= {"transfer buffer": transfer_bytes(seats.backend, *run.sent, engine=True)}
            yield Use(f"engine {number}", gpu(device), phase, items)
            if seats.turns and run.engine_adapter:
                kept = {"sleeping weights": sum(engine_weights(run).values())}
                yield Use(f"engine {number}", HOST, phase, kept)
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
            stay = {"parameters"} if back else set()
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
        items = engine_on_cpu(run, seats.host // max(1, len(seats.engines)))
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
