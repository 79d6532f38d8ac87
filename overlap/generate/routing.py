"""Which of several engines a request goes to: where its past or its prompt is cached, else where the fewest are."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from overlap.core import Request
from overlap.generate.restart import EngineSlot

SKEW, SLACK = 1.2, 2.0
"""An episode stays on an engine that has up to ``SKEW`` times the requests of the idlest, and ``SLACK`` more: computing
its past anew elsewhere costs more than a short wait, and less than a queue."""
REMEMBERED = 10_000
"""Largest number of episodes whose engine is known: no call reports the end of an episode."""


def idlest(ready: Sequence[EngineSlot]) -> EngineSlot | None:
    """The engine with the fewest requests, if any is ready."""
    return min(ready, key=lambda slot: (slot.requests, slot.index), default=None)


class EngineRouting:
    """Keeps a group together, and an episode where its past is.

    ``homes`` has the engine of each group of which requests are in an engine, ``members`` the number of these.
    ``moved`` counts episodes that left the engine with their past for one that had less to do.
    """

    def __init__(self) -> None:
        self.members = Counter[int]()
        self.homes: dict[int, EngineSlot] = {}
        self._episodes: OrderedDict[tuple[int, int], EngineSlot] = OrderedDict()
        self.moved = 0

    def choose(self, request: Request, ready: Sequence[EngineSlot]) -> EngineSlot | None:
        """The engine for a request, if any is ready."""
        if (free := idlest(ready)) is None:
            return None
        if request.turn:
            return self._of_episode(request, ready, free)
        if (home := self.homes.get(request.group)) not in ready:
            home = self.homes[request.group] = free
        return home

    @contextmanager
    def counted(self, slot: EngineSlot, request: Request) -> Iterator[None]:
        """Count a request among those of an engine, and of its group, for as long as the context lasts."""
        slot.requests += 1
        self.members[request.group] += 1
        try:
            yield
        finally:
            slot.requests -= 1
            self.members[request.group] -= 1
            if not self.members[request.group]:
                del self.members[request.group]
                self.homes.pop(request.group, None)

    def forget_episodes(self) -> None:
        """New weights leave no cache of any episode's past."""
        self._episodes.clear()

    def _of_episode(self, request: Request, ready: Sequence[EngineSlot], free: EngineSlot) -> EngineSlot:
        """Return the engine that has the episode's past cached, or its group's prompt, unless it is much busier."""
        known = self._episodes.pop(request.place, None)
        home = known or self.homes.get(request.group, free)
        if home not in ready or home.requests > SKEW * free.requests + SLACK:
            self.moved += known is not None
            home = free
        self.homes.setdefault(request.group, home)
        self._episodes[request.place] = home
        if len(self._episodes) > REMEMBERED:
            self._episodes.popitem(last=False)
        return home
