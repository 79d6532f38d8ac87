"""The lease: staleness is bounded by what is admitted, not by checks after the fact.

A prompt group takes a lease when it is admitted. The lease comes back when the weights that its batch produced have
reached the engine, or when the group was dropped to be replaced. At most ``(max_staleness + 1) * groups_per_step`` are
out at once.

Why that bounds staleness: batches are made in order of admission, and each takes at least ``groups_per_step`` groups
that hold a lease (``assemble``). When a group is admitted at version v, fewer than ``(max_staleness + 1) *
groups_per_step`` groups before it hold one, so it is consumed by one of the next ``max_staleness + 1`` batches, when
the learner is at most at version v + max_staleness.

Fewer may be allowed out (``lookahead``), and admission may be held; neither can break the bound.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from overlap.config.fields import Config
from overlap.core.clock import now


class LeaseWindow:
    """Counts leases. Belongs to one event loop; nothing here waits except ``take``."""

    def __init__(self, cfg: Config, steps: int, first: int = 0) -> None:
        """``steps`` to come need ``steps * groups_per_step`` groups, numbered from ``first``; no more are admitted."""
        self.capacity = self._allowed = cfg.leases
        self.total = steps * cfg.rollout.groups_per_step
        self.admitted = self.landed = self.dropped = 0
        self.waited_s = 0.0
        """Seconds during which ``take`` waited."""
        self.out: set[int] = set()
        """Numbers of the groups that hold a lease."""
        self.closed = False
        """Nothing more is admitted."""
        self._first = first
        self._holds: set[str] = set()
        self._free = asyncio.Event()
        self._settle()

    @property
    def allowed(self) -> int:
        """Leases that may be out now, at most ``capacity``."""
        return self._allowed

    @allowed.setter
    def allowed(self, leases: int) -> None:
        self._allowed = max(1, min(self.capacity, leases))
        self._settle()

    async def take(self) -> int | None:
        """Admit one group: waits for a free lease and returns the group's number, or None once closed."""
        before = now()
        await self._free.wait()
        self.waited_s += now() - before
        if self.closed:
            return None
        group = self._first + self.admitted
        self.admitted += 1
        self.out.add(group)
        self._settle()
        return group

    def land(self, groups: Iterable[int]) -> None:
        """The weights that these groups produced have reached the engine."""
        for group in groups:
            self._give_back(group)
            self.landed += 1
        self._settle()

    def drop(self, group: int) -> None:
        """The group teaches nothing and is replaced: its lease is free for another one at once."""
        self._give_back(group)
        self.dropped += 1
        self._settle()

    def hold(self, why: str, on: bool = True) -> None:
        """Admit nothing while anything holds (``on=False``: that reason is over)."""
        (self._holds.add if on else self._holds.discard)(why)
        self._settle()

    def close(self) -> None:
        """Admit nothing more: every ``take`` returns None."""
        self.closed = True
        self._free.set()

    def _give_back(self, group: int) -> None:
        if group not in self.out:
            raise AssertionError(f"group {group} gave back a lease that it does not hold")
        self.out.remove(group)

    def _settle(self) -> None:
        assert self.admitted == len(self.out) + self.landed + self.dropped, "a lease was lost"
        if self.landed >= self.total:
            self.closed = True
        room = len(self.out) < self._allowed and self.admitted - self.dropped < self.total and not self._holds
        if room or self.closed:
            self._free.set()
        else:
            self._free.clear()
