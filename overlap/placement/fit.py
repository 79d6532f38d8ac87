"""Whether a run fits in memory, by its seats on the devices at hand or on others that are named; and if it does not,
which settings to change: hints in a fixed order, those first that change no result, those last that make it another
run. Hints are not tried, and one alone may not be enough.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from overlap.config.fields import Config
from overlap.errors import ConfigError
from overlap.placement.devices import Devices, devices_here, free_memory
from overlap.placement.engine_memory import kv_tokens
from overlap.placement.memory import (
    GIB,
    HOST,
    MACHINE,
    USABLE,
    MemoryPlan,
    Shortage,
    gpu,
    memory_plan,
)
from overlap.placement.planned_run import PlannedRun, Seats
from overlap.placement.seats import Placement, place
from overlap.placement.shapes import ModelShape

SEQUENCES = 512
"""That an engine on GPUs decodes at once at most, where ``rollout.max_sequences`` leaves that to its KV cache."""
LENGTH = 1 / 3
"""Of a context, what a sequence has in the KV cache on average: all begin with a prompt, and most end early."""
_NAMED = re.compile(r"([1-9]\d{0,3})x(\d+(?:\.\d+)?)")


def named_devices(text: str) -> Devices:
    """Return the devices that "8x80" names: eight GPUs of 80 GiB each. Raises ConfigError."""
    found = _NAMED.fullmatch(text.strip())
    if found is None or not 1 <= float(found[2]) * GIB < 2**63:
        raise ConfigError("--devices", text, "say how many GPUs of how many GiB each, for instance 8x80")
    return Devices.gpus(int(found[1]), int(float(found[2]) * GIB))


def planned_seats(cfg: Config, devices: Devices, host: int = 0) -> Seats:
    """Return who sits where on ``devices``, in a machine with ``host`` bytes of free memory (0: not known). Raises
    ConfigError.
    """
    return seats_on(place(cfg, devices), devices, host)


def seats_here(cfg: Config, placement: Placement) -> Seats:
    """Return who sits where on this machine, with the memory that is free now."""
    return seats_on(placement, devices_here(cfg.run.device), free_memory())


def seats_on(placement: Placement, devices: Devices, host: int) -> Seats:
    """Return what the memory plan needs of a placement that has all its seats on one machine."""
    return Seats(
        devices=(devices.bytes,) * len(devices.names),
        engines=tuple(seat.devices for seat in placement.engines),
        ranks=tuple(seat.devices[0] if seat.devices else 0 for seat in placement.ranks),
        turns=placement.sleeps,
        backend=placement.backend,
        host=host,
        first=placement.ranks[0].rank if placement.ranks else 0,
    )


def sequences_at_once(run: PlannedRun, seats: Seats) -> int:
    """``rollout.max_sequences``; where that is 0, as many as the KV cache of the smallest GPU holds at ``LENGTH``, to a
    limit of ``SEQUENCES``. On a CPU, and on GPUs of which nobody knows the bytes, what the configuration has for them.
    """
    sizes = [seats.devices[device] for engine in seats.engines for device in engine if seats.devices]
    held = kv_tokens(run, min(sizes)) if min(sizes, default=0) else 0
    if run.cfg.rollout.max_sequences or not held:
        return run.cfg.rollout.at_once
    return max(1, min(SEQUENCES, int(held / (LENGTH * run.cfg.context_tokens))))


def check_fit(run: PlannedRun, seats: Seats) -> MemoryPlan:
    """Return the plan of a run that fits, or whose devices' memory is not known.

    Raises ConfigError for any other, with the phase, the device, the bytes that are needed and there, and the settings
    to change; and for what its models cannot do.
    """
    check_models(run)
    plan = memory_plan(run, seats)
    if (shortage := plan.shortage()) is None:
        return plan
    hints = list(_hints(run, seats, shortage))
    field = re.findall(r"\w+\.\w+", " ".join([*hints, "model.policy"]))[0]
    section, name = field.split(".")
    more = "more free memory" if shortage.place in (HOST, MACHINE) else "more devices"
    settings = f"settings that may help, in the order to try them: {', '.join(hints)}; else " if hints else ""
    way_out = f"{_described(shortage)}; {settings}use a smaller policy or {more}"
    raise ConfigError(field, getattr(getattr(run.cfg, section), name), way_out)


def check_models(run: PlannedRun) -> None:
    """Raise ConfigError for sequences longer than the context of policy, critic or reference policy, and for GPUs or
    ranks that cannot share the policy. A size that is not known refuses nothing.
    """
    context, reference = run.cfg.context_tokens, run.reference or run.policy
    models = ("model.policy", run.policy), ("critic.policy", run.critic or run.policy), ("learn.reference", reference)
    for field, shape in models:
        if 0 < shape.context < context:
            way_out = f"model.prompt_tokens + model.response_tokens are {context}, and {field} has a context"
            way_out += f" of {shape.context}: use less"
            raise ConfigError("model.response_tokens", run.cfg.model.response_tokens, way_out)
    shape, parallel, parts = run.policy, run.cfg.rollout.tensor_parallel, run.cfg.learn.sequence_parallel
    heads = f"the policy has {shape.heads} heads of queries and {shape.key_heads} of keys: use "
    if run.engine and shape.heads and not shape.splits(parallel):
        possible = [n for n in range(1, parallel) if shape.splits(n)]
        raise ConfigError("rollout.tensor_parallel", parallel, heads + " or ".join(map(str, possible[-2:])))
    if shape.heads and not shape.divides(parts):
        raise ConfigError("learn.sequence_parallel", parts, f"{heads}a number that divides both, or 1")
    if parts > 1 and _attention(reference) != _attention(shape):
        way_out = "the policy and learn.reference have other heads, which ranks cannot share alike: use 1"
        raise ConfigError("learn.sequence_parallel", parts, way_out)
    if run.engine and shape.decoder.inner % parallel:
        way_out = f"it does not divide the {shape.decoder.inner} numbers of the policy's inner layers: use a divisor"
        raise ConfigError("rollout.tensor_parallel", parallel, way_out)


def _attention(shape: ModelShape) -> tuple[int, ...]:
    return shape.heads, shape.key_heads, shape.decoder.queries, shape.decoder.keys


def _described(shortage: Shortage) -> str:
    wanted, there, place = shortage.wanted / GIB, shortage.there / GIB, shortage.place
    where = f"the run does not fit: in phase {shortage.phase!r} "
    if shortage.what:
        share = f"its share (rollout.gpu_memory) is {there:.1f}"
        return f"{where}{shortage.what} needs {wanted:.1f} GiB of {place}, and {share}"
    if place in (HOST, MACHINE):
        return f"{where}{wanted:.1f} GiB of the machine's memory are needed, and {there:.1f} are free"
    return f"{where}{wanted:.1f} GiB are needed on {place}, of which {there:.1f} can be used ({USABLE:.0%})"


def _hints(run: PlannedRun, seats: Seats, shortage: Shortage) -> Iterator[str]:
    """Yield settings that lower what the place of the shortage holds in its phase."""
    if shortage.what:
        rows = [
            ("raise rollout.gpu_memory", run.cfg.rollout.gpu_memory < 1),
            ("raise rollout.tensor_parallel", _splits_further(run, seats)),
            ("lower model.response_tokens", True),
        ]
    elif shortage.place == HOST:
        rows = _host_hints(run)
    elif shortage.place == MACHINE:
        rows = _cpu_hints(run, seats, shortage)
    else:
        rows = _gpu_hints(run, seats, shortage)
    yield from (hint for hint, helps in rows if helps)


def _splits_further(run: PlannedRun, seats: Seats) -> bool:
    parallel = 2 * run.cfg.rollout.tensor_parallel
    return parallel <= len(seats.devices) and run.policy.splits(parallel)


def _host_hints(run: PlannedRun) -> list[tuple[str, bool]]:
    """The learner has its states there, and an engine that takes adapters its weights."""
    learn = run.cfg.learn
    return [
        ("raise learn.zero_stage", learn.zero_stage < 3 and learn.ranks > 1),
        ("learn.offload=none", run.offload != "none"),
        ("learn.lora_sync=merged", run.cfg.sends_adapter),
        ("learn.lora_rank=16 and learn.lora_sync=merged", not learn.lora_rank),
    ]


def _cpu_hints(run: PlannedRun, seats: Seats, shortage: Shortage) -> list[tuple[str, bool]]:
    """Engines and ranks share the machine's memory in every phase."""
    learn, engines = run.cfg.learn, len(seats.engines) if run.engine else 0
    return [
        *_pass_hints(run, seats, shortage),
        ("lower rollout.max_sequences", bool(engines) and run.cfg.rollout.at_once > 1),
        ("lower rollout.replicas", engines > 1),
        ("raise learn.zero_stage", bool(seats.ranks) and learn.zero_stage < 3 and learn.ranks > 1),
        ("lower learn.ranks", bool(seats.ranks) and learn.ranks > 1),
        ("learn.lora_rank=16", bool(seats.ranks) and not learn.lora_rank),
        ("lower model.response_tokens", True),
    ]


def _gpu_hints(run: PlannedRun, seats: Seats, shortage: Shortage) -> list[tuple[str, bool]]:
    learn, phase = run.cfg.learn, shortage.phase
    engines = {device for engine in seats.engines for device in engine} if run.engine else set()
    engine = shortage.place in map(gpu, engines)
    rank = shortage.place in map(gpu, seats.ranks)
    free = set(range(len(seats.devices))) - set(seats.ranks) - (set() if seats.turns else engines)
    learns, parts = phase in ("critic", "actor"), 2 * learn.sequence_parallel
    rests = rank and seats.turns and run.offload == "none" and phase != "start"
    return [
        ("learn.offload=sleep", rests and (not learns or run.critic is not None)),
        ("lower rollout.gpu_memory", engine and (phase == "generate" or not seats.turns)),
        *_pass_hints(run, seats, shortage),
        ("raise learn.zero_stage", rank and learn.zero_stage < (3 if learn.ranks > 1 else 2)),
        ("raise learn.ranks", rank and bool(free)),
        (
            "raise learn.sequence_parallel",
            rank and (learns or phase == "sync") and run.critic is None
            and learn.ranks % parts == 0 and run.policy.divides(parts),
        ),
        ("raise rollout.tensor_parallel", engine and phase == "sync" and _splits_further(run, seats)),
        ("learn.offload=cpu", rank and run.offload != "cpu" and (learns or phase == "start" or not seats.turns)),
        ("learn.lora_rank=16", rank and phase != "critic" and not learn.lora_rank),
        ("lower model.response_tokens and learn.micro_batch_tokens", rank and (learns or phase == "sync")),
    ]  # fmt: skip


def _pass_hints(run: PlannedRun, seats: Seats, shortage: Shortage) -> list[tuple[str, bool]]:
    """What makes a learner's pass over a micro-batch smaller."""
    learn, phase = run.cfg.learn, shortage.phase
    again = phase in ("critic", "actor") and run.trained(phase, reserves=True).checkpointing
    learns = phase in ("critic", "actor") and (shortage.place == MACHINE or shortage.place in map(gpu, seats.ranks))
    return [
        ("learn.checkpointing=always", learns and not again),
        ("lower learn.micro_batch_tokens", learns and learn.micro_batch_tokens > run.cfg.context_tokens),
    ]
