"""The driver's side of one node: what is sent to it, what comes back, and whether it still speaks.

One call is under way at a time. It takes along what has come to be sent, and brings answers back. An agent that does
not answer in time is asked nothing any more: what it had goes elsewhere, and its node gets another agent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from overlap.clock import now
from overlap.cluster.figures import Offset
from overlap.cluster.nodes import (
    BEAT_S,
    HELLO_S,
    SILENT_S,
    Facts,
    Node,
    NodeJob,
    NodeLost,
    NodeParcel,
    NodeReply,
    answer_within,
)
from overlap.cluster.problems import Digest, NodeProblems
from sandbox.core import Judgement, Problem, Program

_UNKNOWN = Facts(0, 0, "")
PACE_S, CALL_S, SHARE = 0.05, 0.001, 0.3
"""A call costs the driver so much of a core, and all calls at most this share of one."""
WORTH, PACE_LONG_S = 0.01, 1.0
"""A job's answer may be late by such a share of what it took, and by so much."""
MEAN_OF = 4
"""Jobs of each worker that the mean is taken of."""
PARCEL_BYTES, SLOW = 1 << 20, 128 << 10
"""A parcel with so many bytes in it is full; a network that carries at least so many per second is no silent one."""
FAULTS_MAX = 3
"""So many jobs in a row that fail by a node's fault, and it is lost: it fails jobs faster than others do them."""


@dataclass(slots=True, eq=False)
class NodeWork:
    """A program that somebody waits for. ``desk`` is where it lies, None while it waits; ``losses`` counts the
    nodes that were lost with it, ``faults`` those that it failed on, which it ``avoids``; ``ended``: it was answered or
    withdrawn.
    """

    number: int
    turn: int
    problem: Problem
    digest: Digest
    program: Program
    asked_s: float
    done: asyncio.Future[Judgement]
    given_s: float = 0.0
    desk: Desk | None = None
    losses: int = 0
    faults: int = 0
    ended: bool = False
    avoids: frozenset[str] = frozenset()


@dataclass(slots=True, eq=False)
class Desk:
    """See the module. ``take`` is given each reply; ``pace`` says how long two calls are apart, s."""

    node: Node
    take: Callable[[Desk, NodeReply], None]
    pace: Callable[[Desk], float] = lambda desk: PACE_S
    facts: Facts = _UNKNOWN
    offset: Offset = field(default_factory=Offset)
    draining: bool = False
    """It was said that this node shall be let go."""
    mean_s: float = 0.0
    """What a job takes there, over the last ones that each worker did."""
    ended: int = 0
    held: dict[int, NodeWork] = field(default_factory=dict)
    """What it was given and has not answered, whether or not that is sent."""
    places: int = 0
    order: int = 0
    spare: int = 0
    """It shall give back so many jobs that have not begun there."""
    _shelf: NodeProblems = field(default_factory=NodeProblems)
    _unsent: dict[int, NodeWork] = field(default_factory=dict)
    _lacking: set[str] = field(default_factory=set)
    """Digests of problems that it has to be sent."""
    _withdrawn: list[int] = field(default_factory=list)
    _faults: list[str] = field(default_factory=list)
    _waits: bool = False
    _asked_s: float = 0.0
    _nudge: asyncio.TimerHandle | None = None

    @property
    def share(self) -> float:
        """Of its places, those that are taken."""
        return len(self.held) / self.places

    @property
    def is_open(self) -> bool:
        """Whether it may be given another job."""
        return not self.draining and len(self.held) < self.places

    async def open(self) -> None:
        """Have the node say what it is. Raises NodeLost, NodeRefused."""
        self.facts = await answer_within(self.node.hello(), HELLO_S)
        self.offset = Offset(self.facts.clock_s, self.facts.error_s, now())

    def give(self, work: NodeWork) -> None:
        """Have a job sent with the next parcel; its problem where that is new there."""
        if self._shelf.take(work.digest.text):
            self._lacking.add(work.digest.text)
        work.desk = self
        self.held[work.number] = self._unsent[work.number] = work
        self._hurry()

    def withdraw(self, work: NodeWork) -> None:
        """Nobody wants this job any more."""
        self._put_back(work)
        if self._unsent.pop(work.number, None) is None:
            self._withdrawn.append(work.number)
            self._hurry()

    def ask_back(self, count: int) -> None:
        """Have it give back so many jobs that have not begun there."""
        self.spare = count
        self._hurry()

    def _hurry(self) -> None:
        """There is something to be sent: a call that waits there for a first answer shall do so no longer."""
        if self._waits and self._nudge is None:
            due_s = self._asked_s + self.pace(self) - now()
            self._nudge = asyncio.get_running_loop().call_later(max(0.0, due_s), self.node.nudge)

    def answered(self, number: int) -> NodeWork | None:
        """The job that this is the answer of; None where it was withdrawn."""
        work = self.held.get(number)
        if work is not None:
            self._put_back(work)
        return work

    def _put_back(self, work: NodeWork) -> None:
        work.desk = None
        del self.held[work.number]
        self._shelf.put_back(work.digest.text)

    def took(self, seconds: float) -> None:
        """A job that it was given has ended there well, after so long; 0 where it was judged before."""
        self._faults.clear()
        if seconds:
            self.ended += 1
            self.mean_s += (seconds - self.mean_s) / min(self.ended, max(1, MEAN_OF * self.facts.workers))

    def failed(self, why: str) -> None:
        """A job has failed there by a fault of the node."""
        self._faults.append(why)

    async def work(self) -> None:
        """Send and collect until the node is lost. Raises NodeLost, and what ``take`` raises."""
        try:
            while True:
                await self._exchange()
        finally:
            self._rest()

    async def _exchange(self) -> None:
        began, (parcel, size) = now(), self._parcel()
        self._waits, self._asked_s = True, began
        if self._unsent:
            self._hurry()
        reply = await answer_within(self.node.exchange(parcel), SILENT_S + parcel.wait_s + size / SLOW)
        self._rest()
        self.offset.note(began, reply.asked_s, reply.said_s, now())
        if reply.has + len(reply.answers) + len(reply.returned) < len(self.held) - len(self._unsent):
            raise NodeLost("it has lost jobs that it was given")
        self.take(self, reply)
        if len(self._faults) >= FAULTS_MAX:
            raise NodeLost(f"{len(self._faults)} jobs in a row failed there: {self._faults[-1]}")
        pace = self.pace(self)  # of many nodes, also behind a call that waited longer: else each brings one answer
        await asyncio.sleep(max(pace - PACE_S, pace - (now() - began)))

    def _rest(self) -> None:
        self._waits = False
        if self._nudge is not None:
            self._nudge.cancel()
            self._nudge = None

    def _parcel(self) -> tuple[NodeParcel, int]:
        """What is to be sent, and the bytes in it: until it is full, and the last job as a whole."""
        jobs: list[NodeJob] = []
        problems: dict[str, Problem] = {}
        size = 0
        surplus = self._shelf.surplus()
        self._lacking.difference_update(surplus)
        for number, work in self._unsent.items():
            if size >= PARCEL_BYTES:
                break
            digest = work.digest
            jobs.append(NodeJob(number, work.turn, digest.text, work.program))
            size += len(work.program.source)
            if digest.text in self._lacking:
                self._lacking.discard(digest.text)
                problems[digest.text] = work.problem
                size += digest.size
        if len(jobs) == len(self._unsent):
            self._unsent = {}
        else:
            for job in jobs:
                del self._unsent[job.number]
        withdrawn, self._withdrawn = self._withdrawn, []
        spare, self.spare = self.spare, 0
        return NodeParcel(jobs, problems, surplus, withdrawn, spare, BEAT_S), size


def pace_s(nodes: int, mean_s: float = 0.0) -> float:
    """Between two calls to a node, s: what comes meanwhile goes together. Jobs that take ``mean_s`` there can wait for
    others a little.
    """
    return max(PACE_S, CALL_S * nodes / SHARE, min(PACE_LONG_S, WORTH * mean_s))
