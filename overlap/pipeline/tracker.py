"""Tracks the groups of a run: which are admitted, which samples have a result, which steps are complete.

Complete steps go to the learner by a channel. It counts the seconds that each side stood still, which tells where a
pipeline is tight: items wait when the stage behind is slow, the receiver waits when the stage before is. What bounds it
are the leases: nothing is put that was not admitted.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from overlap.config.fields import Config
from overlap.core import Group, Request, Scored
from overlap.core.clock import now
from overlap.pipeline.assemble import Assembler
from overlap.pipeline.prompts import PromptStream
from overlap.pipeline.window import LeaseWindow

T = TypeVar("T")


class Channel(Generic[T]):
    """Belongs to one event loop; one receiver."""

    def __init__(self) -> None:
        self.empty_s = 0.0
        """Seconds in which the receiver waited for an item."""
        self._items: deque[T] = deque()
        self._there = asyncio.Event()
        self._closed = False
        self._full_s = self._since_s = 0.0

    @property
    def full_s(self) -> float:
        """Seconds in which at least one item waited."""
        return self._full_s + (now() - self._since_s if self._items else 0.0)

    @property
    def waiting(self) -> tuple[T, ...]:
        """The items that wait; they go on waiting."""
        return tuple(self._items)

    @property
    def ended(self) -> bool:
        """Closed, and all is received."""
        return self._closed and not self._items

    def put(self, item: T) -> None:
        """Hand over one item."""
        assert not self._closed, "the channel is closed"
        if not self._items:
            self._since_s = now()
        self._items.append(item)
        self._there.set()

    def close(self) -> None:
        """No more items will come."""
        self._closed = True
        self._there.set()

    async def ready(self) -> None:
        """Wait until an item waits, or the channel has ended."""
        before = now()
        try:
            await self._there.wait()
        finally:
            self.empty_s += now() - before

    def take(self) -> T | None:
        """The item that has waited for longest; None where none waits."""
        if not self._items:
            return None
        full_s, item = self.full_s, self._items.popleft()
        if not self._items:
            self._full_s = full_s
            if not self._closed:
                self._there.clear()
        return item


class GroupTracker:
    """Belongs to one event loop. ``carried`` are results that an earlier session had and no step took."""

    def __init__(
        self, cfg: Config, prompts: PromptStream, steps: int, first: int = 0, carried: tuple[Scored, ...] = ()
    ) -> None:
        """``steps`` to come, of groups numbered from ``first``; ``prompts`` is at the first group's prompt."""
        self._per_step, self._samples = cfg.rollout.groups_per_step, cfg.rollout.samples_per_group
        self._prompts = prompts
        self._carried: dict[int, dict[int, Scored]] = {}
        for scored in carried:
            request = scored.trajectory.request
            self._carried.setdefault(request.group, {})[request.sample] = scored
        self.window = LeaseWindow(cfg, steps, first)
        self.assembler = Assembler(cfg, first)
        self.steps = Channel[tuple[Group, ...]]()

    @property
    def finished(self) -> tuple[Scored, ...]:
        """Results that the learner has not been given, by group and sample: also those of complete steps that wait for
        it, and carried ones of groups that are not admitted again yet.
        """
        waiting = [scored for known in self._carried.values() for scored in known.values()]
        waiting += [scored for groups in self.steps.waiting for group in groups for scored in group.samples]
        return tuple(sorted((*self.assembler.finished, *waiting), key=lambda s: s.trajectory.request.place))

    async def admit(self, send: Callable[[Request], None]) -> None:
        """Let prompt groups in, and ``send`` the requests of each.

        consumes: prompts          produces: G requests per group
        waits for: a free lease    woken by: weights that landed, a dropped group

        Ends where no prompt is left; what is underway completes the last steps.
        """
        while (group := await self.window.take()) is not None:
            prompt = next(self._prompts, None)
            if prompt is None:  # all are solved, so nothing more can come
                self.window.drop(group)
                return self.drain()
            self.assembler.expect(group, prompt)
            known = self._carried.pop(group, {})
            for sample in range(self._samples):
                if sample not in known:
                    send(Request(group, sample, prompt))
            for scored in known.values():
                self.add(scored)

    def add(self, scored: Scored) -> None:
        """A sample has its result."""
        if self.assembler.add(scored) is None:
            return
        self._replace()
        while (groups := self.assembler.next_step()) is not None:
            holding = sum(group.id in self.window.out for group in groups)
            self.window.total += holding - self._per_step  # one that could not hand on its lease has taken one more
            self.steps.put(groups)
            self._replace()
        self.settle()

    def land(self, groups: tuple[Group, ...]) -> None:
        """The engine serves the weights that these groups produced."""
        self._prompts.note(groups)  # first: a lease that is free lets the next epoch begin
        self.window.land(group.id for group in groups if group.id in self.window.out)
        self.settle()

    def settle(self) -> None:
        """End the steps when nothing more can come."""
        if self.window.closed and not self.assembler.running:
            self.steps.close()

    def drain(self) -> None:
        """Admit nothing more; the groups underway complete the last steps."""
        self.window.close()
        self.settle()

    def _replace(self) -> None:
        for group in self.assembler.replaceable():
            self.window.drop(group)
