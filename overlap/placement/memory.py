"""Memory that a run needs, before anything is started: bytes by place, moment and item. Pure functions.

A place is a GPU with the memory of its host beside it, or a machine without GPUs, which all processes share. Moments
are "sampling", "the weight transfer", "learning" and "the critic's learning". An engine and a learner on the same GPUs
take turns: the one that is not at work sleeps. ``learn.offload`` says what of the learner's states leaves a GPU then.
Checkpoints are written while the engine samples: what sleeps of them is read in host memory, but weights come back for
that time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from overlap.placement.engine_memory import engine_on_cpu, engine_on_gpu, engine_weights
from overlap.placement.planned_run import (
    GRADIENTS,
    OPTIMIZER,
    WEIGHTS,
    Items,
    Model,
    PlannedRun,
    Seats,
    Trained,
    transfer_bytes,
)

SAMPLING, TRANSFER, LEARNING, CRITIC = "sampling", "the weight transfer", "learning", "the critic's learning"
_LEARNS: Mapping[str, Model] = {LEARNING: "actor", CRITIC: "critic"}

GIB = 2**30
MACHINE, HOST = "machine", "host"
"""Places that are no GPU: a machine without one, and the memory beside GPUs."""
USABLE = 0.96
"""Part of a GPU's memory that a plan may use up: CUDA has less of it to give than the driver names, and freed pieces do
not always fit together. Not measured here."""
RANK_OWN = 450_000_000
"""Bytes of a rank on a CPU: threads, and what libraries keep; their files, which can be read again, are not counted."""
HEAP_FACTOR = 2
"""Resident bytes of such a rank at worst, by the most in use: holes in memory that is never given back. How large they
get depends on the samples, so a run is not refused for them. Two runs of the default policy had that."""
GPU_OWN = 1536 << 20
"""Bytes of a process on a GPU: CUDA's context, libraries and NCCL's buffers. An H200 had 1.3 GiB of it."""
OWN, REFERENCE, BUFFER, OFFLOADED = "processes' own", "reference", "transfer buffers", "offloaded states"


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Bytes that a place holds in its fullest ``moment``, and the bytes that are ``free`` there (0: not known), by
    which a run can be refused. ``worst``: bytes with what may come on top.
    """

    place: str
    moment: str
    items: Mapping[str, int]
    free: int
    worst: int

    @property
    def total(self) -> int:
        """Bytes of all items."""
        return sum(self.items.values())

    @property
    def missing(self) -> int:
        """Bytes; 0 or less where it fits, or where it is not known what is free."""
        return self.total - self.free if self.free else 0


def memory_plan(run: PlannedRun, seats: Seats) -> tuple[MemoryNeed, ...]:
    """The need of each place by the run's configuration, its models' shapes and its seats; the host's last."""
    found = []
    most = 0 if seats.devices else max(rank_items(run, each)[0].total() for each in (TRANSFER, LEARNING, CRITIC))
    heaps = (HEAP_FACTOR - 1) * most * len(seats.ranks)  # what ranks on a CPU may have beside what is in use
    for place, moments in held(run, seats).items():
        moment, items = max(moments.items(), key=lambda one: one[1].total())
        free = seats.host if place in (HOST, MACHINE) else int(USABLE * seats.devices[int(place.split()[1])])
        found.append(MemoryNeed(place, moment, +items, free, items.total() + heaps))
    return tuple(sorted(found, key=lambda need: need.place == HOST))


def held(run: PlannedRun, seats: Seats) -> dict[str, dict[str, Items]]:
    """Place → moment → items."""
    found: dict[str, dict[str, Items]] = defaultdict(lambda: defaultdict(Items))
    for moment in (SAMPLING, TRANSFER, LEARNING, *([CRITIC] if run.critic else [])):
        for place, items in (_on_gpus if seats.devices else _on_machine)(run, seats, moment):
            found[place][moment] += items
    return found


def _on_gpus(run: PlannedRun, seats: Seats, moment: str) -> Iterator[tuple[str, Items]]:
    """An engine that takes turns has its KV cache while it samples alone. Weights that an adapter is beside are in host
    memory while it sleeps, and keep their place there.
    """
    state: Literal["awake", "weights", "asleep"] = "awake"
    if seats.turns and moment != SAMPLING:
        state = "weights" if moment == TRANSFER else "asleep"
    buffer = transfer_bytes(seats.backend, *run.sent, engine=True) if moment == TRANSFER else 0
    for device in (device for engine in seats.engines if run.engine for device in engine):
        yield f"GPU {device}", engine_on_gpu(run, seats.devices[device], state) + Items({OWN: GPU_OWN, BUFFER: buffer})
        if seats.turns and run.engine_adapter:
            yield HOST, Items({"sleeping weights": engine_weights(run).total()})
    here, away = rank_items(run, moment, seats)
    for device in seats.ranks:
        yield f"GPU {device}", here + Items({OWN: GPU_OWN})
        yield HOST, Items({OFFLOADED: away})


def _on_machine(run: PlannedRun, seats: Seats, moment: str) -> Iterator[tuple[str, Items]]:
    """Nothing sleeps, and nothing is offloaded. The first rank keeps a copy of the weights for the engines to map."""
    for _ in seats.engines if run.engine else ():
        yield MACHINE, engine_on_cpu(run, seats.host // max(1, len(seats.engines)))
    maps = run.engine and bool(seats.ranks) and not seats.first
    yield MACHINE, Items({BUFFER: (seats.copies + maps) * run.sent[0]})
    for _ in seats.ranks:
        yield MACHINE, rank_items(run, moment)[0] + Items({OWN: RANK_OWN})


def rank_items(run: PlannedRun, moment: str, seats: Seats | None = None) -> tuple[Items, int]:
    """Bytes that a learner rank holds in a moment on its GPU, without what is its process's own, and how many bytes in
    host memory, which is kept once it is taken; on a machine without GPUs, where there are no ``seats``, all it holds.
    """
    rests = seats is not None and seats.turns and run.cfg.learn.offload != "none"
    reference = _reference(run)
    found = Items() if rests and moment != LEARNING else reference
    away = reference.total() if rests else 0
    models: tuple[Model, ...] = ("actor", "critic") if run.critic else ("actor",)
    for what in models:
        model = run.trained(what, on_gpu=seats is not None)
        here = model.on_device()
        if _LEARNS.get(moment) == what:
            here = model.step()
            if run.reference is not None and what == "actor":  # which may be the larger one, and reads before the step
                teacher = replace(model, shape=run.reference, parameters=run.reference.parameters, trained=0)
                here = max(here, model.on_device() + teacher.probed(), key=Items.total)
        elif rests:
            back = moment == SAMPLING or (what == "actor" and moment == TRANSFER)
            here = Items({WEIGHTS: here[WEIGHTS] if back else 0})
        if what == "actor" and moment == TRANSFER:
            sent = transfer_bytes(seats.backend, *run.sent, engine=False) if seats else 0
            sends, reads = Items({BUFFER: model.gathered_whole() + sent}), model.probed()
            here += sends if sends.total() >= reads.total() else reads
        found += here
        away += _offloaded(run, model, rests=rests) if seats is not None else 0
    return found, away


def _offloaded(run: PlannedRun, model: Trained, *, rests: bool) -> int:
    """Bytes of a model's states in host memory. Gradients and buckets that only wait for their next use are given up
    without a copy.
    """
    leaves = {WEIGHTS, OPTIMIZER} if rests else set()
    leaves |= {OPTIMIZER, GRADIENTS} if run.cfg.learn.offload == "cpu" else set()
    return sum(size for name, size in model.states().items() if name in leaves)


def _reference(run: PlannedRun) -> Items:
    """The reference policy, on each rank."""
    learn, weights = run.cfg.learn, run.width * (run.reference or run.policy).parameters
    whole = weights // learn.ranks if learn.zero_stage == 3 else weights
    return Items({REFERENCE: whole if learn.own_reference else 0})
