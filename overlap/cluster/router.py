"""Which node judges which job: bookkeeping alone, without a clock or a network.

    waiting (oldest turn first) ──▶ the node with the smallest share of its places taken ──▶ answered
                 ▲── the node is lost, or gives it back ──┘

A job that failed on nodes goes to another one, and waits for that as long as there is one; the rest do not wait for it.
Every operation costs O(log n) in jobs and nodes, but for ``balance``, which looks at all nodes.
"""

from __future__ import annotations

import heapq
import math

from overlap.cluster.desk import Desk, NodeWork

DEPTH_MAX, SHORT = 32, 0.1


class Router:
    """Jobs that wait, and the nodes that have the others."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, int, NodeWork]] = []
        self._picky: list[NodeWork] = []
        """Those of them that avoid a node."""
        self.waiting = 0
        """Jobs that no node has."""
        self.desks: dict[str, Desk] = {}
        self._joined = 0
        self._free: list[tuple[float, int, str]] = []
        """Nodes by their load, each at least once with that of today while it has room; older entries are skipped."""

    def join(self, desk: Desk, places: int) -> None:
        """A node that may hold so many jobs at a time."""
        self._joined += 1
        desk.places, desk.order = max(1, places), self._joined
        self.desks[desk.node.name] = desk
        self._offer(desk)

    def resize(self, desk: Desk, places: int) -> None:
        """It may hold so many jobs from now on; it has others than before."""
        desk.places = max(1, places)
        self._offer(desk)

    def lose(self, desk: Desk) -> list[NodeWork]:
        """It is gone, and its jobs wait again, as old as they are; returns those."""
        if self.desks.get(desk.node.name) is desk:
            del self.desks[desk.node.name]
        lost = list(desk.held.values())
        desk.held.clear()
        for work in lost:
            work.losses += 1
            self.add(work)
        return lost

    def add(self, work: NodeWork) -> None:
        """Have it wait for a node. Lower turns are first, then lower numbers."""
        work.desk = None
        self.waiting += 1
        if work.avoids:
            self._picky.append(work)
        else:
            heapq.heappush(self._waiting, (work.turn, work.number, work))

    def withdraw(self, work: NodeWork) -> None:
        """Nobody wants it any more."""
        work.ended = True
        if work.desk is None:
            self.waiting -= 1  # its place in the heap is skipped
        else:
            desk = work.desk
            desk.withdraw(work)
            self._offer(desk)

    def everything(self) -> list[NodeWork]:
        """All jobs, waiting or held."""
        held = [work for desk in self.desks.values() for work in desk.held.values()]
        waiting = [work for *_, work in self._waiting] + self._picky
        return held + [work for work in waiting if not work.ended]

    def assign(self) -> list[NodeWork]:
        """Give waiting jobs to nodes as long as there are both; returns those that were given."""
        given = self._elsewhere() if self._picky else []
        while self.waiting > len(self._picky) and (desk := self._freest()) is not None:
            given.append(self._give(desk, self._oldest()))
        return given

    def balance(self) -> None:
        """Where no job waits and a node has nothing to do, others give back what has not begun there."""
        if self.waiting:
            return
        desks = [desk for desk in self.desks.values() if not desk.draining]
        idle = sum(max(0, desk.facts.workers - len(desk.held)) for desk in desks)
        for desk in desks:
            ahead = len(desk.held) - desk.facts.workers
            if idle > 0 and ahead > 0:
                desk.ask_back(min(idle, ahead))
                idle -= ahead

    def _elsewhere(self) -> list[NodeWork]:
        """The same for those that avoid a node; where there is no other, they wait with the rest."""
        given, picky = [], self._picky
        self._picky = []
        for work in picky:
            others = [desk for name, desk in self.desks.items() if name not in work.avoids and not desk.draining]
            if work.ended:
                continue
            if not others:
                heapq.heappush(self._waiting, (work.turn, work.number, work))
            elif free := [desk for desk in others if desk.is_open]:
                given.append(self._give(min(free, key=lambda desk: (desk.share, desk.order)), work))
            else:
                self._picky.append(work)
        return given

    def _give(self, desk: Desk, work: NodeWork) -> NodeWork:
        self.waiting -= 1
        desk.give(work)
        self._offer(desk)
        return work

    def _oldest(self) -> NodeWork:
        while True:
            work = heapq.heappop(self._waiting)[2]
            if not work.ended:
                return work

    def _offer(self, desk: Desk) -> None:
        if desk.is_open:
            heapq.heappush(self._free, (desk.share, desk.order, desk.node.name))
        if len(self._free) > 64 + 8 * len(self.desks):
            self._free = [(each.share, each.order, name) for name, each in self.desks.items() if each.is_open]
            heapq.heapify(self._free)

    def _freest(self) -> Desk | None:
        while self._free:
            share, order, name = heapq.heappop(self._free)
            desk = self.desks.get(name)
            if desk is not None and desk.order == order and desk.share == share and desk.is_open:
                return desk
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
