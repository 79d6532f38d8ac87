"""Whether a run fits, and if it does not the settings that would make it fit: found by trying, not by rule of thumb.

Candidates stand in the order of what they cost: first those that change no result, then those that cost time. One
alone is tried before two together, two before three, up to four. Those that make it another run (adapters, shorter
responses) are tried last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import Any

from overlap.config import Config
from overlap.errors import ConfigError
from overlap.placement.memory import HOST, MACHINE, Asked, MemoryPlan, Seats, Shortage, memory_plan

GIB = 2**30
WAYS = 3
"""Ways out that are named."""

_SHARES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)
_PARTS = (2, 4, 8)
_LORA = 16

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
    place, the bytes that are wanted and there, and up to three ways out; and for what its models cannot do.
    """
    check_models(asked)
    plan = memory_plan(asked, seating(asked.cfg))
    if (shortage := plan.shortage()) is None:
        return plan
    ways = ways_out(asked, seating)
    field = ways[0][0].field if ways else "model.policy"
    raise ConfigError(field, value_of(asked, field), f"{told(shortage)}; {_told_ways(ways, shortage)}")


def check_models(asked: Asked) -> None:
    """Raise ConfigError for sequences that are longer than the policy or the critic knows, and for devices or ranks
    that cannot share the policy. A size that is not known refuses nothing.
    """
    context = asked.cfg.context_tokens
    for field, shape in (("model.policy", asked.policy), ("critic.policy", asked.critic or asked.policy)):
        if 0 < shape.context < context:
            way_out = f"model.prompt_tokens + model.response_tokens are {context}, and {field} has a context"
            raise ConfigError(
                "model.response_tokens", asked.cfg.model.response_tokens, f"{way_out} of {shape.context}: use less"
            )
    _check_heads(asked)


def _check_heads(asked: Asked) -> None:
    shape, parallel, parts = asked.policy, asked.cfg.rollout.tensor_parallel, asked.cfg.learn.sequence_parallel
    heads = f"the policy has {shape.heads} heads of queries and {shape.key_heads} of keys: use "
    if asked.engine and shape.heads and not shape.splits(parallel):
        possible = [n for n in range(1, parallel) if shape.splits(n)]
        raise ConfigError("rollout.tensor_parallel", parallel, heads + " or ".join(map(str, possible[-2:])))
    if shape.heads and not shape.divides(parts):
        raise ConfigError("learn.sequence_parallel", parts, f"{heads}a number that divides both, or 1")
    if asked.engine and shape.decoder.inner % parallel:
        way_out = f"it does not divide the {shape.decoder.inner} numbers of the policy's inner layers: use a divisor"
        raise ConfigError("rollout.tensor_parallel", parallel, way_out)


def told(shortage: Shortage) -> str:
    """In a line."""
    wanted, there, place = shortage.wanted / GIB, shortage.there / GIB, shortage.place
    where = f"the run does not fit: in phase {shortage.phase!r} "
    if shortage.what:
        return (
            where
            + f"{shortage.what} needs {wanted:.1f} GiB of {place}, and its share (rollout.gpu_memory) is {there:.1f}"
        )
    if place in (HOST, MACHINE):
        return where + f"{wanted:.1f} GiB of the machine's memory are needed, and {there:.1f} are free"
    return where + f"{wanted:.1f} GiB are needed on {place}, which has {there:.1f}"


def _told_ways(ways: Sequence[Way], shortage: Shortage) -> str:
    if ways:
        return "it fits with " + ", or with ".join(" ".join(map(str, way)) for way in ways)
    more = "free some" if shortage.place in (HOST, MACHINE) else "take more devices"
    return f"none of the settings that were tried makes it fit: use a smaller policy, or {more}"


def ways_out(asked: Asked, seating: Seating, count: int = WAYS) -> list[Way]:
    """Up to ``count`` sets of settings under which the run fits, first those under which it learns the same. None holds
    more than another one needs: where one setting is enough, others stand beside it only if they let it be gentler.
    """
    same = [family for family in _families(asked, seating(asked.cfg)) if family]
    others = [family for family in _other_runs(asked) if family]
    steps = _steps([*same, *others])
    found: list[Way] = []
    for chosen in (*_choices(same), *(chosen for chosen in _choices([*same, *others]) if set(chosen) & set(others))):
        if len(found) == count:
            break
        for way in product(*chosen):
            if any(_needs_less(known, way, steps) for known in found):
                continue
            if _fits(asked, way, seating):
                found.append(way)
                break
    return found


def _choices(families: Sequence[Way]) -> Iterator[tuple[Way, ...]]:
    """Families whose settings are tried together: one alone first, then two, up to four."""
    for size in range(1, 5):
        for chosen in combinations(families, size):
            if len({family[0].field for family in chosen}) == size:
                yield chosen


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
        check_models(changed)
        return memory_plan(changed, seating(changed.cfg)).shortage() is None
    except ConfigError:  # not a configuration, or not on these devices
        return False


def with_settings(asked: Asked, way: Way) -> Asked:
    """The same with all of these settings. Raises ConfigError for what is no configuration."""
    given = dict[str, dict[str, Any]]()
    for setting in way:
        section, name = setting.field.split(".")
        given.setdefault(section, {})[name] = setting.value
    sections = {section: replace(getattr(asked.cfg, section), **values) for section, values in given.items()}
    return replace(asked, cfg=replace(asked.cfg, **sections))


def value_of(asked: Asked, field: str) -> Any:
    """What a field is set to."""
    section, name = field.split(".")
    return getattr(getattr(asked.cfg, section), name)


def _families(asked: Asked, seats: Seats) -> Iterator[Way]:
    """For each field the values that may help, the gentlest first; none changes what is learned."""
    cfg, gpus = asked.cfg, len(seats.devices)
    learn, sequences, tokens = cfg.learn, cfg.rollout.max_sequences, cfg.model.response_tokens
    if gpus and seats.turns and asked.offload == "none":
        yield _settings("learn.offload", "none", ("sleep",))
    if gpus and asked.engine:
        share = cfg.rollout.gpu_memory
        yield _settings("rollout.gpu_memory", share, sorted(_SHARES, key=lambda one: abs(one - share)))
    yield _settings("learn.checkpointing", learn.checkpointing, ("always",))
    if learn.ranks > 1 or gpus:  # with an optimizer on the host it matters to one rank, too
        yield _settings("learn.zero_stage", learn.zero_stage, range(learn.zero_stage + 1, 4))
    apart = gpus - cfg.rollout.tensor_parallel * max(1, cfg.rollout.replicas)  # engines and ranks on GPUs of their own
    yield _settings("learn.ranks", learn.ranks, [ranks for ranks in (gpus, apart) if ranks > 0])
    contexts = [cfg.model.prompt_tokens + length for length in (tokens, *_shorter(cfg))]
    yield _settings("learn.micro_batch_tokens", learn.micro_batch_tokens, contexts)
    if not gpus:
        yield _settings("learn.ranks", learn.ranks, [part for part in (learn.ranks // 2, 1) if part])
    if not gpus and asked.engine:
        yield _settings("rollout.max_sequences", sequences, [sequences // part for part in _PARTS])
    elif gpus:
        parts = [part for part in _PARTS if part > learn.sequence_parallel and asked.policy.divides(part)]
        yield _settings("learn.sequence_parallel", learn.sequence_parallel, parts)
        parts = [part for part in _PARTS if part > cfg.rollout.tensor_parallel and asked.policy.splits(part)]
        yield _settings("rollout.tensor_parallel", cfg.rollout.tensor_parallel, parts)
        yield _settings("learn.offload", asked.offload, ("cpu",))


def _other_runs(asked: Asked) -> Iterator[Way]:
    """The same of fields that make it another run."""
    learn, model = asked.cfg.learn, asked.cfg.model
    yield _settings("learn.lora_rank", learn.lora_rank, () if learn.lora_rank else (_LORA,))
    yield _settings("model.response_tokens", model.response_tokens, _shorter(asked.cfg))


def _shorter(cfg: Config) -> list[int]:
    """Lengths of responses: they save activations where ``learn.micro_batch_tokens`` goes with them."""
    return [length for part in _PARTS if (length := cfg.model.response_tokens // part)]


def _settings(field: str, value: Any, others: Iterable[Any]) -> tuple[Setting, ...]:
    return tuple(Setting(field, other) for other in others if other != value)
