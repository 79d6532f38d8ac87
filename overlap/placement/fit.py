"""Whether a run fits, and if it does not the settings that would make it fit: found by trying, not by rule of thumb.

Candidates stand in the order of what they cost: first those that change no result, then those that cost time, last
those that make it another run. One alone is tried before two together, two before three.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
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
    found: list[tuple[tuple[int, int], ...]] = []
    for size in (1, 2, 3):
        for chosen in combinations(range(len(families)), size):
            if len({families[family][0].field for family in chosen}) < size:
                continue
            for steps in product(*(range(len(families[family])) for family in chosen)):
                places = tuple(zip(chosen, steps, strict=True))
                if any(_needs_less(known, places) for known in found):
                    continue
                if _fits(asked, _way(families, places), seating):
                    found.append(places)
                    break
            if len(found) == count:
                return [_way(families, places) for places in found]
    return [_way(families, places) for places in found]


def _way(families: Sequence[tuple[Setting, ...]], places: Iterable[tuple[int, int]]) -> Way:
    return tuple(families[family][step] for family, step in places)


def _needs_less(known: Iterable[tuple[int, int]], places: Iterable[tuple[int, int]]) -> bool:
    """Whether a way sets no field that the other one leaves alone, and none further."""
    steps = dict(places)
    return all(family in steps and step <= steps[family] for family, step in known)


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
    if gpus > learn.ranks:
        yield _settings("learn.ranks", learn.ranks, (gpus,))
    yield _settings("learn.micro_batch_tokens", learn.micro_batch_tokens, (cfg.model.context_tokens,))
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
