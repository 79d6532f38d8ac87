"""The memory plan for a person: bytes per place and phase, with the items of the fullest phase, and one line."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from overlap.errors import count_of
from overlap.placement.engine_memory import kv_tokens
from overlap.placement.fit import sequences_at_once
from overlap.placement.memory import (
    GIB,
    HEAP,
    HOST,
    MACHINE,
    PHASES,
    USABLE,
    MemoryPlan,
    Phase,
)
from overlap.placement.planned_run import PlannedRun, Seats

_SHOWN = 0.05
"""GiB; what is less than that is not named."""
_MEANINGS: Mapping[Phase, str] = {
    "start": "models are loaded",
    "generate": "sampling",
    "sync": "weight transfer",
    "critic": "the critic's optimizer step",
    "actor": "the policy's optimizer step",
}


_TRANSFERS = {"shm": "shared memory", "ipc": "CUDA IPC", "nccl": "NCCL"}


def memory_table(plan: MemoryPlan) -> list[str]:
    """Rows: for each place its phases, then what makes up the fullest; in the end what the columns mean. GPUs that look
    the same share a row.
    """
    phases = [phase for phase in PHASES if any(use.phase == phase for use in plan.uses)]
    rows = [f"{'memory, GiB':<14}" + "".join(f"{phase:>10}" for phase in phases) + f"{'available':>11}"]
    for name, place in _alike(plan).items():
        there = plan.there.get(place, 0)
        cells = "".join(f"{plan.in_use(place, phase) / GIB:>10.1f}" for phase in phases)
        rows.append(f"{name:<14}{cells}" + (f"{there / GIB:>11.1f}" if there else f"{'?':>11}"))
        fullest = plan.fullest(place)
        rows.append(f"  {fullest}: {items_line(plan, place, fullest)}")
        if heap := _heap(plan, place):
            rows.append(f"  and up to {heap / GIB:.1f} of heap fragmentation in the ranks, for which no run is refused")
    known = [f"of a GPU its memory, of which {USABLE:.0%} can be used"] if set(plan.places) - {HOST, MACHINE} else []
    known += ["of the host what is free"] if {HOST, MACHINE} & set(plan.places) else []
    legend = "; ".join(known) + (" (?: unknown)" if any(not plan.there.get(place) for place in plan.places) else "")
    return [*rows, f"  {'; '.join(f'{phase}: {_MEANINGS[phase]}' for phase in phases)}", f"  available: {legend}"]


def seats_line(seats: Seats) -> str:
    """Who sits where, and how weights travel."""
    told = []
    if engines := len(seats.engines):
        each = f" of {count_of(len(seats.engines[0]), 'GPU')}" if seats.devices else ""
        on = _on(seats, {device for engine in seats.engines for device in engine})
        told.append(f"{count_of(engines, 'vLLM engine')}{each} on {on}")
    if seats.ranks:
        told.append(f"{count_of(len(seats.ranks), 'learner rank')} on {_on(seats, set(seats.ranks))}")
    told += ["colocated: engine and learner take turns"] if seats.turns else []
    told += [f"weight transfer by {transfer(seats.backend)}"] if engines and seats.ranks else []
    if seats.turns and (waits := set(seats.ranks) - {device for engine in seats.engines for device in engine}):
        told.append(f"no engine on {_on(seats, waits)}, idle during generation (rollout.replicas=0 uses all)")
    idle = set(range(len(seats.devices))) - {device for engine in (*seats.engines, seats.ranks) for device in engine}
    told += [f"unused: {_on(seats, idle)}"] if idle else []
    return "; ".join(told)


def transfer(backend: str) -> str:
    """How weights travel from learner to engine, in words."""
    return _TRANSFERS.get(backend, backend)


def _on(seats: Seats, devices: set[int]) -> str:
    return _name([f"GPU {device}" for device in sorted(devices)]) if seats.devices else "the CPU"


def cache_line(run: PlannedRun, seats: Seats) -> str:
    """How much an engine's KV cache holds on GPUs; "" where that is not known."""
    sizes = [seats.devices[device] for engine in seats.engines for device in engine if seats.devices]
    if not (run.engine and sizes and min(sizes) and (tokens := kv_tokens(run, min(sizes))) > 0):
        return ""
    context, most = run.cfg.context_tokens, sequences_at_once(run, seats)
    full = min(most, tokens // context)
    told = f"{tokens:,} tokens per engine: {count_of(full, 'sequence')} of full length ({context:,} tokens) at once"
    return told + (f", up to rollout.max_sequences={most} shorter ones" if full < most else "")


def options_line(run: PlannedRun) -> str:
    """The options of ``rollout.engine``, with what of them the plan does not count; "" where there are none."""
    options, rollout = run.cfg.rollout.engine, run.cfg.rollout
    if not (options and run.engine):
        return ""
    notes = [rollout.engine_options]
    if (options.get("kv_cache_dtype") or "auto") not in ("auto", run.cfg.dtype):
        bound = f"rollout.parity_bound is {run.cfg.parity_bound:g} nats"
        notes.append(f"another type of KV cache moves log-probs, and the parity check may end the run ({bound})")
    if options.get("quantization") or options.get("quantization_config"):
        notes.append("memory is planned as if weights were not quantized")
    if rollout.has_draft_model:
        notes.append("memory is planned without the draft model, which is not trained")
    return "; ".join(notes)


def items_line(plan: MemoryPlan, place: str, phase: Phase) -> str:
    """What is held there, by kind of process and item, the largest first."""
    sizes: dict[str, int] = defaultdict(int)
    for use in plan.at(place, phase):
        for item, size in use.items.items():
            if item != HEAP:
                sizes[f"{use.process.split()[0]} process" if item == "own" else item] += size
    named = sorted(sizes.items(), key=lambda pair: -pair[1])
    return ", ".join(f"{item} {size / GIB:.1f}" for item, size in named if size >= _SHOWN * GIB)


def memory_line(plan: MemoryPlan) -> str:
    """The fullest phase of the fullest place of each kind."""
    told = []
    for name, place in _alike(plan).items():
        phase, there = plan.fullest(place), plan.there.get(place, 0)
        of = f" of {there / GIB:.1f}" if there else ""
        heap = f", up to {heap / GIB:.1f} more by heap fragmentation" if (heap := _heap(plan, place)) else ""
        told.append(f"{name} peak {plan.in_use(place, phase) / GIB:.1f}{of} GiB (phase {phase}){heap}")
    return "; ".join(told)


def _heap(plan: MemoryPlan, place: str) -> int:
    """Bytes that the processes there may hold beside what is in use in the fullest phase."""
    return sum(use.items.get(HEAP, 0) for use in plan.at(place, plan.fullest(place)))


def _alike(plan: MemoryPlan) -> Mapping[str, str]:
    """Name → one place of those with the same figures. GPUs 0 to 7 of a run are mostly alike."""
    groups: dict[tuple[object, ...], list[str]] = defaultdict(list)
    for place in plan.places:
        if plan.most(place):
            figures = tuple(plan.total(place, phase) for phase in PHASES)
            groups[(place.split()[0], plan.there.get(place, 0), figures)].append(place)
    return {_name(places): places[0] for places in groups.values()}


def _name(places: list[str]) -> str:
    if len(places) == 1:
        return places[0]
    kind, numbers = places[0].split()[0], [int(place.split()[1]) for place in places]
    whole = numbers == list(range(numbers[0], numbers[-1] + 1))
    return f"{kind} {numbers[0]}-{numbers[-1]}" if whole else f"{kind} {','.join(map(str, numbers))}"
