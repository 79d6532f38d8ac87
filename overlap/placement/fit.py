"""Whether a run fits, and if it does not the settings that would make it fit: found by trying, not by rule of thumb.

Candidates stand in the order of what they cost: first those that change no result, then those that cost time, last
those that make it another run. One alone is tried before two together, two before three.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import Any

from overlap.config import Config
from overlap.errors import ConfigError
from overlap.placement.memory import Asked, MemoryPlan, Seats, Shortage, memory_plan

GIB = 2**30
WAYS = 3
"""Ways out that are named."""

_SHARES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)
_PARTS = (2, 4, 8)

Seating = Callable[[Config], Seats]
"""Who sits where under a configuration, on the devices at hand. Raises ConfigError where they do not suffice."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A field and what it is set to."""

    field: str
    value: Any

    def __str__(self) -> str:
        return f"{self.field}={self.value}"


Way = tuple[Setting, ...]


def check_fit(asked: Asked, seating: Seating) -> MemoryPlan:
    """The plan of a run that fits, or whose places are not known. Raises ConfigError for any other, with the phase, the
    place, the bytes that are wanted and there, and up to three ways out.
    """
    plan = memory_plan(asked, seating(asked.cfg))
    if (shortage := plan.shortage()) is None:
        return plan
    ways = ways_out(asked, seating)
    field = ways[0][0].field if ways else "model.policy"
    raise ConfigError(field, value_of(asked, field), f"{told(shortage)}; {_told_ways(ways)}")


def told(shortage: Shortage) -> str:
    """In a line."""
    wanted, there = shortage.wanted / GIB, shortage.there / GIB
    return (
        f"the run does not fit: in phase {shortage.phase!r} {shortage.what} wants {wanted:.1f} GiB of "
        f"{shortage.place}, which has {there:.1f}"
    )


def _told_ways(ways: Sequence[Way]) -> str:
    if not ways:
        return "none of the settings that were tried makes it fit: use a smaller policy, or more devices"
    return "it fits with " + ", or with ".join(" ".join(map(str, way)) for way in ways)


def ways_out(asked: Asked, seating: Seating, count: int = WAYS) -> list[Way]:
    """Up to ``count`` sets of settings under which the run fits. None holds more than another one needs: where one
    setting is enough, others stand beside it only if they let it be gentler.
    """
    families = [family for family in _families(asked, seating(asked.cfg)) if family]
    steps = _steps(families)
    found: list[Way] = []
    for size in (1, 2, 3):
        for chosen in combinations(families, size):
            if len({family[0].field for family in chosen}) < size:
                continue
            for way in product(*chosen):
                if any(_needs_less(known, way, steps) for known in found):
                    continue
                if _fits(asked, way, seating):
                    found.append(way)
                    break
            if len(found) == count:
                return found
    return found


def _steps(families: Iterable[Iterable[Setting]]) -> dict[Setting, int]:
    """How far each setting goes, among those of its field."""
    seen, steps = Counter[str](), dict[Setting, int]()
    for setting in (setting for family in families for setting in family):
        steps[setting] = seen[setting.field]
        seen[setting.field] += 1
    return steps


def _needs_less(known: Way, way: Way, steps: Mapping[Setting, int]) -> bool:
    """Whether the known way sets no field that the other one leaves alone, and none further."""
    far = {setting.field: steps[setting] for setting in way}
    return all(setting.field in far and steps[setting] <= far[setting.field] for setting in known)


def _fits(asked: Asked, way: Way, seating: Seating) -> bool:
    try:
        changed = with_settings(asked, way)
        return memory_plan(changed, seating(changed.cfg)).shortage() is None
    except ConfigError:  # not a configuration, or not on these devices
        return False


def with_settings(asked: Asked, way: Way) -> Asked:
    """The same with these settings. Raises ConfigError for what is no configuration."""
    for setting in way:
        section, name = setting.field.split(".")
        cfg = replace(asked.cfg, **{section: replace(getattr(asked.cfg, section), **{name: setting.value})})
        asked = replace(asked, cfg=cfg)
    return asked


def value_of(asked: Asked, field: str) -> Any:
    """What a field is set to."""
    section, name = field.split(".")
    return getattr(getattr(asked.cfg, section), name)


def _families(asked: Asked, seats: Seats) -> Iterator[tuple[Setting, ...]]:
    """For each field the values that may help, the gentlest first."""
    cfg, gpus = asked.cfg, len(seats.devices)
    learn, sequences, tokens = cfg.learn, cfg.rollout.max_sequences, cfg.model.response_tokens
    if gpus and seats.turns and asked.offload == "none":
        yield _settings("learn.offload", "none", ("sleep",))
    if gpus and asked.engine:
        share = cfg.rollout.gpu_memory
        yield _settings("rollout.gpu_memory", share, sorted(_SHARES, key=lambda one: abs(one - share)))
    yield _settings("learn.checkpointing", learn.checkpointing, ("always",))
    if learn.ranks > 1 or gpus > 1:
        yield _settings("learn.zero_stage", learn.zero_stage, range(learn.zero_stage + 1, 4))
    apart = gpus - cfg.rollout.tensor_parallel * max(1, cfg.rollout.replicas)  # engines and ranks on GPUs of their own
    yield _settings("learn.ranks", learn.ranks, [ranks for ranks in (gpus, apart) if ranks > 0])
    yield _settings("learn.micro_batch_tokens", learn.micro_batch_tokens, (cfg.model.context_tokens,))
    if not gpus:
        yield _settings("learn.ranks", learn.ranks, [part for part in (learn.ranks // 2, 1) if part])
    if not gpus and asked.engine:
        yield _settings("rollout.max_sequences", sequences, [sequences // part for part in _PARTS])
    elif gpus:
        parts = [part for part in _PARTS if part > learn.sequence_ranks and asked.policy.divides(part)]
        yield _settings("learn.sequence_ranks", learn.sequence_ranks, parts)
        parts = [part for part in _PARTS if part > cfg.rollout.tensor_parallel and asked.policy.divides(part)]
        yield _settings("rollout.tensor_parallel", cfg.rollout.tensor_parallel, parts)
        yield _settings("learn.offload", asked.offload, ("cpu",))
    yield _settings("model.response_tokens", tokens, [tokens // part for part in _PARTS])


def _settings(field: str, value: Any, others: Iterable[Any]) -> tuple[Setting, ...]:
    return tuple(Setting(field, other) for other in others if other != value)
