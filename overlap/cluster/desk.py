"""The driver's records: which node judges which job, what is sent to it, what comes back, and whether it still answers.

    waiting (oldest turn first) ──▶ the node with the smallest share of its places taken ──▶ answered
                 ▲── the node is lost, or gives it back ──┘

To each node one call is under way at a time. It takes along what has come to be sent, and brings answers back. An agent
that does not answer in time gets no more calls: its jobs go to other nodes, and its node gets another agent.

A job that failed on a node goes to another one as long as there is one. Every operation costs O(log n) in jobs and
nodes, but for that and for ``balance``, which look at all nodes.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections import OrderedDict
from dataclasses import dataclass

from overlap.cluster.members import RayNode
from overlap.cluster.nodes import BEAT_S, SILENT_S, Facts, NodeJob, NodeLost, NodeParcel, NodeReply, answer_within
from overlap.core.clock import now
from sandbox.core.nouns import Judgement, Program
from sandbox.core.problem import Problem

PACE_S, CALL_S, SHARE = 0.05, 0.001, 0.3
"""Seconds between two calls to a node; CPU seconds of the driver per call; share of a core that all calls may use."""
WORTH, PACE_LONG_S = 0.01, 1.0
"""Bounds on how late a job's answer may be: a share of the time that the job took, and seconds."""
MEAN_OF = 4
"""Jobs of each worker that the mean is taken of."""
DEPTH_MAX, SHORT = 32, 0.1
PARCEL_BYTES, SLOW = 1 << 20, 128 << 10
"""Bytes at which a parcel is full; bytes per second from which on a network does not count as silent."""
FAULTS_MAX = 3
"""Jobs in a row that fail by a node's fault after which it is lost: it fails jobs faster than others do them."""
KEPT = 1024
"""Problems that a node keeps; it forgets the least recently used one."""


@dataclass(slots=True, eq=False)
class NodeWork:
    """A program that a caller awaits until it is ``done``; ``size``: bytes of its problem, which has this ``digest``.
    ``desk`` is the one that has the job, None while it waits; ``losses`` counts the nodes that were lost with it,
    ``faults`` the nodes that it failed on, which it ``avoids``.
    """

    number: int
    turn: int
    problem: Problem
    digest: str
    size: int
    program: Program
    asked_s: float
    done: asyncio.Future[Judgement]
    desk: Desk | None = None
    losses: int = 0
    faults: int = 0
    avoids: frozenset[str] = frozenset()


class Desk:
    """The driver's side of one node. ``held``: jobs that it was given and has not answered, sent or not; ``ended``: how
    many have run there, and ``mean_s``: how long the last ones took; ``spare``: how many that have not begun there it
    shall give back; ``faults``: why its last jobs failed, by faults of the node. Calls are ``pace_s`` apart.
    """

    def __init__(self, node: RayNode, facts: Facts) -> None:
        self.node, self.facts = node, facts
        self.held: dict[int, NodeWork] = {}
        self.places = self.ended = self.spare = 0
        self.mean_s, self.pace_s = 0.0, PACE_S
        self._there = OrderedDict[str, None]()
        self._unsent: dict[int, NodeWork] = {}
        self._withdrawn: list[int] = []
        self.faults: list[str] = []
        self._sent_s, self._waits = 0.0, False
        self._nudge: asyncio.TimerHandle | None = None

    @property
    def share(self) -> float:
        """Share of its places that are taken."""
        return len(self.held) / self.places

    @property
    def is_open(self) -> bool:
        """True when it may get another job."""
        return len(self.held) < self.places

    @property
    def room(self) -> int:
        """Jobs that it should hold, so that no worker idles until more can come, which takes two paces: for each worker
        one, and as many ahead as it does in that time. Beside long jobs none is held ahead, for another node may be
        free before. And no more ahead than have ended there: the first jobs to end are short ones, which say little of
        the others.
        """
        workers, ahead = self.facts.workers, 2 * self.pace_s / self.mean_s if self.mean_s else 0.0
        each = 1 if ahead < SHORT else min(DEPTH_MAX, 1 + math.ceil(ahead))
        return max(1, min(workers * each, workers + self.ended))

    def give(self, work: NodeWork) -> None:
        """Have a job sent with the next parcel."""
        work.desk = self
        self.held[work.number] = self._unsent[work.number] = work
        self.hurry()

    def withdraw(self, work: NodeWork) -> None:
        """Withdraw a job whose answer is not needed any more."""
        self.answered(work.number)
        if self._unsent.pop(work.number, None) is None:
            self._withdrawn.append(work.number)
            self.hurry()

    def hurry(self) -> None:
        """End the node's wait for a first answer, because there is something to send."""
        if self._waits and self._nudge is None:
            due_s = self._sent_s + self.pace_s - now()
            self._nudge = asyncio.get_running_loop().call_later(max(0.0, due_s), self.node.nudge)

    def answered(self, number: int) -> NodeWork | None:
        """The job that this is the answer of, which is here no more; None where it was withdrawn."""
        work = self.held.pop(number, None)
        if work is not None:
            work.desk = None
        return work

    def took(self, seconds: float) -> None:
        """Note that a job has ended there without a fault, after ``seconds``; 0 where it was judged before."""
        self.faults.clear()
        if seconds:
            self.ended += 1
            self.mean_s += (seconds - self.mean_s) / min(self.ended, max(1, MEAN_OF * self.facts.workers))

    async def exchange(self) -> NodeReply:
        """Send the next parcel and return the reply. Raises NodeLost."""
        self._sent_s, self._waits = now(), True
        parcel, size = self._parcel()
        if self._unsent:
            self.hurry()
        try:
            reply = await answer_within(self.node.exchange(parcel), SILENT_S + parcel.wait_s + size / SLOW)
        finally:
            self._waits = False
            if self._nudge is not None:
                self._nudge.cancel()
                self._nudge = None
        if reply.has + len(reply.answers) + len(reply.returned) < len(self.held) - len(self._unsent):
            raise NodeLost("it has lost jobs that it was given")
        return reply

    async def rest(self) -> None:
        """Wait until the next call is due. Of many nodes also behind one that waited longer: else each brings one
        answer. Raises NodeLost where the node has failed job after job.
        """
        if len(self.faults) >= FAULTS_MAX:
            raise NodeLost(f"{len(self.faults)} jobs in a row failed there: {self.faults[-1]}")
        await asyncio.sleep(max(self.pace_s - PACE_S, self._sent_s + self.pace_s - now()))

    def _parcel(self) -> tuple[NodeParcel, int]:
        """Return the next parcel and its bytes: jobs until it is full, the last job as a whole, and the problems that
        are new to the node.
        """
        jobs: list[NodeJob] = []
        problems: dict[str, Problem] = {}
        size, there = 0, self._there
        for number, work in self._unsent.items():
            if size >= PARCEL_BYTES:
                break
            jobs.append(NodeJob(number, work.turn, work.digest, work.program))
            size += len(work.program.source)
            if work.digest not in there:
                problems[work.digest] = work.problem
                size += work.size
            there[work.digest] = None
            there.move_to_end(work.digest)
        for job in jobs:
            del self._unsent[job.number]
        forgotten = [there.popitem(last=False)[0] for _ in range(len(there) - KEPT)]
        withdrawn, self._withdrawn = self._withdrawn, []
        spare, self.spare = self.spare, 0
        return NodeParcel(jobs, problems, forgotten, withdrawn, spare, BEAT_S), size


class Router:
    """Jobs that wait, and the nodes that have the others: bookkeeping alone, without a clock or a network."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, int, NodeWork]] = []
        """Lower turns are first, then lower numbers; jobs that are done are skipped."""
        self.desks: dict[str, Desk] = {}
        self._free: list[tuple[float, str]] = []
        """Nodes by their share, each at least once with that of today while it has room; older entries are skipped."""

    def join(self, desk: Desk) -> None:
        """A node that may be given jobs; or one that has others than before, and perhaps room for more."""
        desk.places = desk.room
        self.desks[desk.node.name] = desk
        self._offer(desk)

    def lose(self, desk: Desk) -> list[NodeWork]:
        """Remove a desk whose node is gone; its jobs wait again, at their former age. Return these jobs."""
        if self.desks.get(desk.node.name) is desk:
            del self.desks[desk.node.name]
        lost, desk.held = list(desk.held.values()), {}
        for work in lost:
            work.losses += 1
            self.add(work)
        return lost

    def add(self, work: NodeWork) -> None:
        """Have it wait for a node. One that avoids nodes is another one's at once, if there is another, whether or not
        that has room.
        """
        work.desk = None
        if work.avoids:
            others = [desk for name, desk in self.desks.items() if name not in work.avoids]
            if others:
                self._give(min(others, key=lambda desk: desk.share), work)
                return
        heapq.heappush(self._waiting, (work.turn, work.number, work))

    def withdraw(self, work: NodeWork) -> None:
        """Withdraw a job whose answer is not needed any more."""
        if (desk := work.desk) is not None:
            desk.withdraw(work)
            self._offer(desk)

    def everything(self) -> list[NodeWork]:
        """All jobs that are not done, without a node or with one."""
        held = [work for desk in self.desks.values() for work in desk.held.values()]
        return [work for work in [*held, *(work for *_, work in self._waiting)] if not work.done.done()]

    def assign(self) -> None:
        """Give waiting jobs to nodes as long as there are both."""
        while self._some() and (desk := self._freest()) is not None:
            self._give(desk, heapq.heappop(self._waiting)[2])

    def balance(self) -> None:
        """Have nodes give back jobs that have not begun there, when no job waits and another node has nothing to do."""
        if self._some():
            return
        idle = sum(max(0, desk.facts.workers - len(desk.held)) for desk in self.desks.values())
        for desk in self.desks.values():
            ahead = len(desk.held) - desk.facts.workers
            if idle > 0 and ahead > 0:
                desk.spare = min(idle, ahead)
                desk.hurry()
                idle -= ahead

    def _some(self) -> bool:
        """Return whether a job waits; then the first one is the oldest."""
        while self._waiting and self._waiting[0][2].done.done():
            heapq.heappop(self._waiting)
        return bool(self._waiting)

    def _give(self, desk: Desk, work: NodeWork) -> None:
        desk.give(work)
        self._offer(desk)

    def _offer(self, desk: Desk) -> None:
        if desk.is_open:
            heapq.heappush(self._free, (desk.share, desk.node.name))
        if len(self._free) > 64 + 8 * len(self.desks):
            self._free = [(each.share, name) for name, each in self.desks.items() if each.is_open]
            heapq.heapify(self._free)

    def _freest(self) -> Desk | None:
        while self._free:
            share, name = heapq.heappop(self._free)
            desk = self.desks.get(name)
            if desk is not None and desk.share == share and desk.is_open:
                return desk
        return None


def pace_s(nodes: int, mean_s: float = 0.0) -> float:
    """Seconds between two calls to a node; longer where jobs take long (``mean_s``), for they can wait."""
    return max(PACE_S, CALL_S * nodes / SHARE, min(PACE_LONG_S, WORTH * mean_s))
