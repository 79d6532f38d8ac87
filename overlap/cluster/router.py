"""Which node judges which job: bookkeeping alone, without a clock or a network.

    waiting (oldest turn first) ──▶ the node with the smallest share of its places taken ──▶ answered
                 ▲── the node is lost: the same job, its attempt one higher ──┘

A job that failed on nodes goes to another one, and waits for that as long as there is one; the rest do not wait for it.
An answer counts if it is of the attempt that its job is at; whatever a lost node says later is of an earlier one.
Every operation costs O(log n) in jobs and nodes.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field
from typing import Any

DEPTH_MAX, SHORT = 32, 0.1


@dataclass(slots=True, eq=False)
class RoutedJob:
    """One thing to be judged. ``node`` is where it lies, "" while it waits; ``attempt`` counts the nodes it was given
    to; ``ended`` once it was answered or withdrawn; it ``avoids`` nodes that it failed on.
    """

    number: int
    turn: int
    work: Any
    node: str = ""
    attempt: int = 0
    ended: bool = False
    avoids: frozenset[str] = frozenset()


@dataclass(slots=True, eq=False)
class _Load:
    name: str
    places: int
    order: int
    held: dict[int, RoutedJob] = field(default_factory=dict)
    drains: bool = False

    @property
    def share(self) -> float:
        return len(self.held) / self.places

    @property
    def open(self) -> bool:
        return not self.drains and len(self.held) < self.places


class Router:
    """Jobs that wait, and jobs that nodes have."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, int, RoutedJob]] = []
        self._picky: list[RoutedJob] = []
        """Those of them that avoid a node."""
        self._waits = 0
        self._loads: dict[str, _Load] = {}
        self._joined = 0
        self._free: list[tuple[float, int, str]] = []
        """Nodes by their load, each at least once with that of today while it has room; older entries are skipped."""

    @property
    def waiting(self) -> int:
        """Jobs that no node has."""
        return self._waits

    @property
    def nodes(self) -> dict[str, int]:
        """Jobs that each node holds."""
        return {name: len(load.held) for name, load in self._loads.items()}

    def held(self, node: str) -> int:
        """Jobs that this node holds."""
        return len(self._loads[node].held)

    def join(self, node: str, places: int) -> None:
        """A node that may hold so many jobs at a time."""
        self._joined += 1
        self._loads[node] = _Load(node, max(1, places), self._joined)
        self._offer(node)

    def resize(self, node: str, places: int) -> None:
        """It may hold so many jobs from now on."""
        load = self._loads[node]
        if load.places != places:
            load.places = max(1, places)
            self._offer(node)

    def drain(self, node: str) -> None:
        """It gets no further job, and keeps those that it has."""
        self._loads[node].drains = True

    def lose(self, node: str) -> list[RoutedJob]:
        """It is gone; its jobs wait again, as old as they are. Those jobs; none for a node that is not there."""
        load = self._loads.pop(node, None)
        lost = list(load.held.values()) if load else []
        for job in lost:
            self.add(job)
        return lost

    def add(self, job: RoutedJob) -> None:
        """Have it wait for a node, also one that was answered. Lower turns are first, then lower numbers."""
        job.node, job.ended = "", False
        self._waits += 1
        if job.avoids:
            self._picky.append(job)
        else:
            heapq.heappush(self._waiting, (job.turn, job.number, job))

    def withdraw(self, job: RoutedJob) -> str:
        """Nobody wants it any more. The node that has it, "" if none has."""
        node, job.ended = job.node, True
        if node:
            self._release(node, job)
        else:
            self._waits -= 1  # its place in the heap is skipped
        return node

    def everything(self) -> list[RoutedJob]:
        """All jobs, waiting or held."""
        held = [job for load in self._loads.values() for job in load.held.values()]
        waiting = [job for *_, job in self._waiting] + self._picky
        return held + [job for job in waiting if not job.ended]

    def assign(self) -> list[tuple[str, RoutedJob]]:
        """Give waiting jobs to nodes as long as there are both, and say which got which."""
        given = self._elsewhere() if self._picky else []
        while self._waits > len(self._picky) and (node := self._freest()) is not None:
            given.append(self._give(node, self._oldest()))
        return given

    def _elsewhere(self) -> list[tuple[str, RoutedJob]]:
        """The same for those that avoid a node; where there is no other, they wait with the rest."""
        given, picky = [], self._picky
        self._picky = []
        for job in picky:
            others = [load for name, load in self._loads.items() if name not in job.avoids and not load.drains]
            if job.ended:
                continue
            if not others:
                heapq.heappush(self._waiting, (job.turn, job.number, job))
            elif free := [load for load in others if load.open]:
                given.append(self._give(min(free, key=lambda load: (load.share, load.order)).name, job))
            else:
                self._picky.append(job)
        return given

    def _give(self, node: str, job: RoutedJob) -> tuple[str, RoutedJob]:
        self._waits -= 1
        job.node, job.attempt = node, job.attempt + 1
        self._loads[node].held[job.number] = job
        self._offer(node)
        return node, job

    def answered(self, node: str, number: int, attempt: int) -> RoutedJob | None:
        """The job that this is the answer of; None for an answer that comes too late."""
        load = self._loads.get(node)
        job = load.held.get(number) if load else None
        if job is None or job.attempt != attempt:
            return None
        self._release(node, job)
        job.ended = True
        return job

    def _oldest(self) -> RoutedJob:
        while True:
            job = heapq.heappop(self._waiting)[2]
            if not job.ended:
                return job

    def _release(self, node: str, job: RoutedJob) -> None:
        job.node = ""
        del self._loads[node].held[job.number]
        self._offer(node)

    def _offer(self, node: str) -> None:
        load = self._loads[node]
        if load.open:
            heapq.heappush(self._free, (load.share, load.order, node))
        if len(self._free) > 64 + 8 * len(self._loads):
            self._free = [(load.share, load.order, name) for name, load in self._loads.items() if load.open]
            heapq.heapify(self._free)

    def _freest(self) -> str | None:
        while self._free:
            share, order, node = self._free[0]
            load = self._loads.get(node)
            heapq.heappop(self._free)
            if load is not None and load.order == order and load.share == share and load.open:
                return node
        return None


def depth(mean_s: float, lag_s: float) -> int:
    """Jobs that a node should hold for each of its workers, so that none idles while an answer and the next job are on
    their way, which takes ``lag_s``: one, and as many as a worker does meanwhile. ``mean_s`` is what a job takes, 0
    where nobody knows yet. Jobs beside which that is short are not held ahead: another node may be free before.
    """
    if not mean_s:
        return 2
    ahead = lag_s / mean_s
    return 1 if ahead < SHORT else min(DEPTH_MAX, 1 + math.ceil(ahead))
