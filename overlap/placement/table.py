"""Lines of a plan: the seats on each device, and what each place needs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from overlap.core.errors import count_of
from overlap.placement.engine_memory import kv_tokens
from overlap.placement.fit import sequences_at_once
from overlap.placement.memory import GIB, MemoryNeed
from overlap.placement.planned_run import PlannedRun, Seats
from overlap.placement.seats import SHM_BYTES

_SHOWN = 0.05
"""GiB; what is less than that is not named."""
_TRANSFERS = {"shm": "shared memory", "ipc": "CUDA IPC", "nccl": "NCCL"}


def amount(needs: float, worst: float, free: float) -> str:
    """An amount of bytes: "needs 9.3 GiB (at worst 15.4), 22.5 free"; ``free`` is 0 where it is not known."""
    told = f"needs {_gib(needs)} GiB" + (f" (at worst {_gib(worst)})" if _gib(worst) != _gib(needs) else "")
    return told + (f", {_gib(free)} free" if free else ", free is not known")


def _gib(count: float) -> str:
    return f"{count / GIB:.1f}" if count >= GIB / 10 else f"{count / GIB:.2g}"


def memory_lines(plan: Sequence[MemoryNeed], seats: Seats) -> list[tuple[str, str]]:
    """A row for each place; GPUs that look the same share one."""
    groups: dict[tuple[object, ...], list[MemoryNeed]] = defaultdict(list)
    for need in plan:
        if need.total:
            groups[need.place.split()[0], need.total, need.moment, need.free].append(need)
    rows = []
    for (need, *_), places in ((alike, [need.place for need in alike]) for alike in groups.values()):
        named = sorted(need.items.items(), key=lambda pair: -pair[1])
        items = ", ".join(f"{item} {size / GIB:.1f}" for item, size in named if size >= _SHOWN * GIB)
        told = f"{amount(need.total, need.worst, need.free)}; most during {need.moment}: {items}"
        rows.append(("memory", f"{_name(places)} {told}"))
    shared = f"/dev/shm {amount(SHM_BYTES, SHM_BYTES, seats.shared)}; GPUs talk to each other by it, too"
    return rows + ([("memory", shared)] if seats.shares_memory else [])


def seats_line(seats: Seats) -> str:
    """Describe the seats on each device, and how weights travel."""
    told = []
    engine_devices = {device for engine in seats.engines for device in engine}
    if engines := len(seats.engines):
        each = f" of {count_of(len(seats.engines[0]), 'GPU')}" if seats.devices else ""
        told.append(f"{count_of(engines, 'vLLM engine')}{each} on {_on(seats, engine_devices)}")
    if seats.ranks:
        told.append(f"{count_of(len(seats.ranks), 'learner rank')} on {_on(seats, seats.ranks)}")
    told += ["colocated: engine and learner take turns"] if seats.turns else []
    told += [f"weight transfer by {transfer(seats.backend)}"] if engines and seats.ranks else []
    if seats.turns and (waits := set(seats.ranks) - engine_devices):
        told.append(f"no engine on {_on(seats, waits)}, idle during generation (rollout.replicas=0 uses all)")
    idle = set(range(len(seats.devices))) - engine_devices - set(seats.ranks)
    told += [f"unused: {_on(seats, idle)}"] if idle else []
    return "; ".join(told)


def transfer(backend: str) -> str:
    """Describe how weights travel from learner to engine, in words."""
    return _TRANSFERS.get(backend, backend)


def _on(seats: Seats, devices: Iterable[int]) -> str:
    return _name([f"GPU {device}" for device in sorted(set(devices))]) if seats.devices else "the CPU"


def _name(places: Sequence[str]) -> str:
    """Name places of one kind: "GPU 0-7"."""
    if len(places) == 1:
        return places[0]
    kind, numbers = places[0].split()[0], [int(place.split()[1]) for place in places]
    whole = numbers == list(range(numbers[0], numbers[-1] + 1))
    return f"{kind} {numbers[0]}-{numbers[-1]}" if whole else f"{kind} {','.join(map(str, numbers))}"


def cache_line(run: PlannedRun, seats: Seats) -> str:
    """Describe how much an engine's KV cache holds on GPUs; "" where that is not known."""
    if not (run.engine and seats.smallest and (tokens := kv_tokens(run, seats.smallest)) > 0):
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
        bound = f"above {run.cfg.parity_bound:g} nats"
        notes.append(f"another type of KV cache moves log-probs, and the parity check may end the run ({bound})")
    if options.get("quantization") or options.get("quantization_config"):
        notes.append("memory is planned as if weights were not quantized")
    if rollout.has_draft_model:
        notes.append("memory is planned without the draft model, which is not trained")
    return "; ".join(notes)
