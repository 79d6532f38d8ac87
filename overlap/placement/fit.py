"""Check that a run fits in memory, by its seats on the devices at hand or on others that are named; a run that does not
is refused with what it needs most for and one way out, which is not tried: it may not be enough.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from overlap.config.fields import Config
from overlap.core.errors import ConfigError
from overlap.placement.devices import Devices, devices_here, free_memory
from overlap.placement.engine_memory import engine_shortage, kv_tokens
from overlap.placement.memory import (
    CRITIC,
    GIB,
    HOST,
    LEARNING,
    MACHINE,
    OFFLOADED,
    REFERENCE,
    TRANSFER,
    MemoryNeed,
    memory_plan,
)
from overlap.placement.planned_run import (
    ACTIVATIONS,
    BUCKETS,
    GRADIENTS,
    OPTIMIZER,
    WEIGHTS,
    PlannedRun,
    Seats,
)
from overlap.placement.seats import Placement, place
from overlap.placement.shapes import ModelShape

SEQUENCES = 512
"""Most sequences at once in an engine on GPUs, where ``rollout.max_sequences`` leaves that to its KV cache."""
LENGTH = 1 / 3
"""Share of a context that a sequence has in the KV cache on average: all begin with a prompt, and most end early."""
_NAMED = re.compile(r"([1-9]\d{0,3})x(\d+(?:\.\d+)?)")


def named_devices(text: str) -> Devices:
    """Return the devices that "8x80" names: eight GPUs of 80 GiB each. Raises ConfigError."""
    found = _NAMED.fullmatch(text.strip())
    if found is None or not 1 <= float(found[2]) * GIB < 2**63:
        raise ConfigError("--devices", text, "say how many GPUs of how many GiB each, for instance 8x80")
    return Devices.gpus(int(found[1]), int(float(found[2]) * GIB))


def planned_seats(cfg: Config, devices: Devices, host: int = 0) -> Seats:
    """Return the seats on ``devices``, in a machine with ``host`` bytes of free memory (0: not known). Raises
    ConfigError.
    """
    return seats_on(place(cfg, devices), devices, host)


def seats_here(cfg: Config, placement: Placement) -> Seats:
    """Return the seats on this machine, with the memory that is free now."""
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
        shared=devices.shared,
    )


def sequences_at_once(run: PlannedRun, seats: Seats) -> int:
    """``rollout.max_sequences``; where that is 0, as many as the KV cache of the smallest GPU holds at ``LENGTH``, to a
    limit of ``SEQUENCES``. On a CPU, and on GPUs whose bytes are not known, what the configuration has for them.
    """
    size = seats.smallest
    held = kv_tokens(run, size) if size else 0
    if run.cfg.rollout.max_sequences or not held:
        return run.cfg.rollout.at_once
    return max(1, min(SEQUENCES, int(held / (LENGTH * run.cfg.context_tokens))))


def check_fit(run: PlannedRun, seats: Seats, node: str = "") -> tuple[MemoryNeed, ...]:
    """Return the plan of a run that fits, or whose devices' memory is not known.

    Raises ConfigError for any other, with the ``node`` of a cluster, the place, the bytes that are needed and free, the
    item that needs the most and a setting to change; and for what its models cannot do.
    """
    check_models(run)
    plan = memory_plan(run, seats)
    worst = max(plan, key=lambda need: need.missing, default=None)
    if worst is not None and worst.missing > 0:
        biggest = max(worst.items, key=lambda item: worst.items[item])
        told = f"{worst.place} needs {worst.total / GIB:.1f} GiB during {worst.moment}, {worst.free / GIB:.1f} free; "
        told += f"most of it is for {biggest} ({worst.items[biggest] / GIB:.1f})"
        _refuse(run, node, told, next(_ways_out(run, seats, worst)))
    if seats.smallest and run.engine and (missing := engine_shortage(run, seats.smallest)) > 0:
        has = run.cfg.rollout.gpu_memory * seats.smallest / GIB
        told = (
            f"an engine with one sequence of {run.cfg.context_tokens:,} tokens needs {has + missing / GIB:.1f} GiB of "
        )
        told += f"a GPU, and its share (rollout.gpu_memory) is {has:.1f}"
        _refuse(run, node, told, "a higher rollout.gpu_memory" if run.cfg.rollout.gpu_memory < 0.9 else _SMALLER)
    return plan


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


def fits(run: PlannedRun, seats: Seats) -> bool:
    """True when it fits, or when that is not known."""
    short = seats.smallest and run.engine and engine_shortage(run, seats.smallest) > 0
    return not short and all(need.missing <= 0 for need in memory_plan(run, seats))


_SMALLER = "a smaller model.policy"
_STATES = (WEIGHTS, GRADIENTS, OPTIMIZER, BUCKETS, REFERENCE, OFFLOADED)


def _refuse(run: PlannedRun, node: str, told: str, way_out: str) -> None:
    found = re.search(r"(\w+)\.(\w+)", way_out)
    assert found is not None
    value = getattr(getattr(run.cfg, found[1]), found[2])
    raise ConfigError(found[0], value, f"{node and f'node {node}: '}the run does not fit: {told}: use {way_out}")


def _ways_out(run: PlannedRun, seats: Seats, need: MemoryNeed) -> Iterator[str]:
    """Yield what lowers the items there, those of the biggest first: what changes no result, then what makes it another
    run.
    """
    ways = _ways(run, seats, need)
    for item in sorted(need.items, key=lambda item: -need.items[item]):
        yield from (way for way, items, helps in ways if item in items and helps)
    yield _SMALLER


def _ways(run: PlannedRun, seats: Seats, need: MemoryNeed) -> list[tuple[str, tuple[str, ...], bool]]:
    """Settings, the items that each lowers, and whether it does so here."""
    learn, rollout, gpus = run.cfg.learn, run.cfg.rollout, len(seats.devices)
    parallel, parts, on_gpu = (
        2 * rollout.tensor_parallel,
        2 * learn.sequence_parallel,
        need.place not in (HOST, MACHINE),
    )
    again = run.trained("critic" if need.moment == CRITIC else "actor", on_gpu=on_gpu).recomputes
    rests = on_gpu and seats.turns and learn.offload == "none"
    held, cache, asleep, passed = ("engine weights",), ("KV cache",), ("sleeping weights",), (ACTIVATIONS,)
    splits = on_gpu and parallel <= gpus and run.policy.splits(parallel)
    shared = run.critic is None and learn.ranks % parts == 0 and run.policy.divides(parts)
    return [
        ("learn.lora_rank=0, which trains all weights", asleep, True),
        (f"rollout.tensor_parallel={parallel}", held + asleep, splits),
        ("a lower rollout.gpu_memory", cache, on_gpu),
        ("a lower rollout.max_sequences", cache, not on_gpu and rollout.at_once > 1),
        ("a lower rollout.replicas", held + cache + asleep, len(seats.engines) > 1),
        ("learn.recompute=always", passed, not again and need.moment != TRANSFER),
        ("a lower learn.micro_batch_tokens", passed, learn.micro_batch_tokens > run.cfg.context_tokens),
        (f"learn.sequence_parallel={parts}", passed, shared),
        ("a lower model.response_tokens", passed, True),
        ("learn.offload=sleep", _STATES, rests and (need.moment != LEARNING or run.critic is not None)),
        ("learn.zero_stage=3", _STATES, learn.zero_stage < 3 and learn.ranks > 1),
        ("learn.offload=none", _STATES, need.place == HOST and learn.offload != "none"),
        ("more learn.ranks", _STATES, on_gpu and learn.ranks < gpus),
        ("learn.offload=cpu", _STATES, on_gpu and learn.offload != "cpu"),
        ("a lower learn.ranks", _STATES, not on_gpu and len(seats.ranks) > 1),
        ("learn.lora_rank=16, which trains adapters", _STATES, not learn.lora_rank),
    ]
