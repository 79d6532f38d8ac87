"""The memory plan for a person: bytes per place and phase, with the items of the fullest phase, and one line."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from overlap.placement.memory import PHASES, MemoryPlan, Phase

GIB = 2**30
_SHOWN = 0.05
"""GiB; what is less than that is not named."""


def memory_table(plan: MemoryPlan) -> list[str]:
    """Rows: for each place its phases, then what makes up the fullest. GPUs that look the same share a row."""
    phases = [phase for phase in PHASES if any(use.phase == phase for use in plan.uses)]
    rows = [f"{'memory, GiB':<14}" + "".join(f"{phase:>10}" for phase in phases) + f"{'there':>10}"]
    for name, place in _alike(plan).items():
        there = plan.there.get(place, 0)
        figures = [*(plan.total(place, phase) for phase in phases)]
        cells = "".join(f"{size / GIB:>10.1f}" for size in figures)
        rows.append(f"{name:<14}{cells}" + (f"{there / GIB:>10.1f}" if there else f"{'?':>10}"))
        fullest = plan.fullest(place)
        rows.append(f"  {fullest}: {items_line(plan, place, fullest)}")
    return rows


def items_line(plan: MemoryPlan, place: str, phase: Phase) -> str:
    """What is held there, by kind of process and item, the largest first."""
    sizes: dict[str, int] = defaultdict(int)
    for use in plan.at(place, phase):
        for item, size in use.items.items():
            sizes[f"{use.process.split()[0]}'s {item}" if item == "own" else item] += size
    named = sorted(sizes.items(), key=lambda pair: -pair[1])
    return ", ".join(f"{item} {size / GIB:.1f}" for item, size in named if size >= _SHOWN * GIB)


def memory_line(plan: MemoryPlan) -> str:
    """The fullest phase of the fullest place of each kind."""
    told = []
    for name, place in _alike(plan).items():
        phase, there = plan.fullest(place), plan.there.get(place, 0)
        of = f" of {there / GIB:.0f}" if there else ""
        told.append(f"{name} at most {plan.most(place) / GIB:.1f}{of} GiB ({phase})")
    return "; ".join(told)


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
