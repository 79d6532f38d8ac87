"""Many nodes behind the methods of one sandbox pool.

consumes  judge(problem, program, turn)          produces  a Judgement, or raises SandboxError
waits     for a node with room, then for its answer; woken by either; cancelling it withdraws the job

A job lies on one node at a time. Where that is lost, or fails by a fault that is not the job's, it goes to another; a
node that was lost is asked nothing any more, so a job has one answer. Nodes that join get work at once; one that is
drained ends what it has, and is let go. Without any node jobs wait for ``ALONE_S``, then they fail. A cluster that has
lost its head is left.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

from overlap.clock import now
from overlap.cluster.desk import Desk, NodeWork, pace_s
from overlap.cluster.figures import Tallies
from overlap.cluster.nodes import Facts, HeadLost, Members, Node, NodeDrained, NodeLost, NodeRefused, NodeReply
from overlap.cluster.problems import Digest, Digests, same_key
from overlap.cluster.router import Router, depth
from overlap.cluster.wire import placed
from overlap.core import ClusterFigures
from overlap.errors import OverlapError, VerifierError
from sandbox.core import Judgement, Problem, Program
from sandbox.errors import CheckerError, InvalidProblem, InvalidProgram, PoolClosed, SandboxError, from_wire
from sandbox.pool import JudgementCache

ALONE_S = 60.0
TRIES = 4
"""Nodes that a job may fail on by a fault of theirs."""
REFUSALS_TOLD = 3
LOST_MAX = 8
"""Nodes that may be lost with a job."""
_OWN = (InvalidProblem, InvalidProgram, CheckerError)


class ClusterPool:
    """See the module; made anywhere, begun and ended by ``async with``. ``tell`` gets a line for each node that joins,
    is refused, falls silent, comes back, drains or is lost.
    """

    def __init__(self, members: Members, *, tell: Callable[[str], None] = print, judge_once: bool = True) -> None:
        self._members, self._tell = members, tell
        self._router, self._digests, self._tallies = Router(), Digests(), Tallies()
        self._once = JudgementCache() if judge_once else None
        self._numbers = 0
        self._spreading = self._closed = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending: asyncio.Task[None] | None = None
        self._met: set[Node] = set()
        self._some = asyncio.Event()
        self._failure: BaseException | None = None
        self._broken: Exception | None = None
        self._refusals: dict[str, str] = {}

    async def __aenter__(self) -> ClusterPool:
        """Returns when the first node is there. Raises SandboxError where none is in time, and what ended the search
        for them.
        """
        try:
            self._start(self._gather())
            self._start(self._look_after())
            async with asyncio.timeout(ALONE_S):
                await self._some.wait()
            if self._failure is not None:
                raise self._failure
        except BaseException as error:
            await self.__aexit__()
            if isinstance(error, TimeoutError):
                raise SandboxError(self._why_none()) from None
            raise
        return self

    async def __aexit__(self, *exc_info: Any) -> None:
        self._closed = True
        self._fail(PoolClosed("the pool was closed while this job waited"))
        try:
            await self._end()
        except asyncio.CancelledError:  # agents that have not ended by now are left to themselves
            assert self._ending is not None
            self._ending.cancel()
            await asyncio.wait([self._ending])
            raise

    async def _end(self) -> None:
        """Once for all who ask for it: a cluster that one of them leaves while agents of another one still end would
        have nobody left to end them.
        """
        if self._ending is None:
            self._ending = asyncio.create_task(self._end_all(), name="end the agents")
        await asyncio.shield(self._ending)

    async def _end_all(self) -> None:
        """What tasks do is given up, agents are ended, also those that no task had met yet, and the cluster is left."""
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        try:
            if tasks:
                await asyncio.wait(tasks)
            await asyncio.gather(*(node.close() for node in self._met))
        finally:
            self._met.clear()
            await self._members.close()

    async def judge(self, problem: Problem, program: Program, *, turn: int = 0) -> Judgement:
        """Judge one program on some node. Raises SandboxError for our faults, VerifierError without a cluster.

        ``queue_s`` is the time until it began there, as exactly as that node's clock is known; ``run_s`` is 0 when the
        judgement was made for an equal program.
        """
        if self._closed:
            raise PoolClosed("the pool is closed")
        start, digest = now(), self._digests.of(problem)
        if self._once is None:
            return await self._ask(problem, digest, program, turn, start)
        ask = partial(self._ask, problem, digest, program, turn, start)  # a closure would be a dozen objects
        done, shared = await self._once.get(same_key(digest.text, program), problem.limits, ask)
        return dataclasses.replace(done, queue_s=now() - start, run_s=0.0) if shared else done

    def pids(self) -> tuple[int, ...]:
        """None: its processes are other machines'."""
        return ()

    @property
    def concurrency(self) -> int:
        """Programs that all nodes judge at once now, at least 1."""
        return max(1, sum(desk.facts.workers for desk in self._router.desks.values()))

    def take_nodes(self) -> ClusterFigures:
        """What each node did since the last call."""
        return self._tallies.take(self._router.desks, now())

    def nodes(self) -> dict[str, Facts]:
        """The nodes that get jobs now."""
        return {name: desk.facts for name, desk in self._router.desks.items()}

    async def _ask(self, problem: Problem, digest: Digest, program: Program, turn: int, asked_s: float) -> Judgement:
        if self._closed:  # one who waited for an equal job is next
            raise PoolClosed("the pool is closed")
        if self._broken:
            raise self._broken
        self._numbers += 1
        done: asyncio.Future[Judgement] = asyncio.get_running_loop().create_future()
        work = NodeWork(self._numbers, turn, problem, digest, program, asked_s, done)
        self._router.add(work)
        self._spread()
        try:
            return await done
        finally:
            if not work.ended:
                self._router.withdraw(work)
                self._spread()

    def _spread(self) -> None:
        """Give jobs to nodes when everybody who runs now has asked."""
        if not self._spreading:
            self._spreading = True
            asyncio.get_running_loop().call_soon(self._assign)

    def _assign(self) -> None:
        self._spreading, given_s = False, now()
        for work in self._router.assign():
            work.given_s = given_s

    def _take(self, desk: Desk, reply: NodeReply) -> None:
        """Raises NodeDrained."""
        heard_s = now()
        for number, judgement, fault, ended_s in reply.answers:
            work = desk.answered(number)
            if work is None:
                continue
            if judgement is None:
                self._failed(desk, work, from_wire(dict(fault or {})))
            else:
                self._judged(desk, work, judgement, min(heard_s, ended_s - desk.offset.ahead_s))
        for number in reply.returned:
            if (work := desk.answered(number)) is not None:
                self._router.add(work)
        if reply.answers or reply.returned:
            self._router.resize(desk, self._room(desk))
            self._spread()
        if desk.node.drains:
            self._drain(desk)

    def _judged(self, desk: Desk, work: NodeWork, judgement: Judgement, ended_s: float) -> None:
        desk.took(judgement.run_s)
        self._tallies.judged(desk.node.name, judgement.run_s)
        work.ended = True
        if not work.done.done():
            began_s = max(work.given_s, ended_s - judgement.run_s)
            queue_s = max(0.0, began_s - work.asked_s)
            work.done.set_result(placed(judgement, queue_s, desk.node.name))

    def _drain(self, desk: Desk) -> None:
        held = len(desk.held)
        if not desk.draining:
            desk.draining = True
            self._tell(f"node {desk.node.name} drains: {held} jobs end there, and it gets no other")
        if not held:
            raise NodeDrained

    def _failed(self, desk: Desk, work: NodeWork, error: SandboxError) -> None:
        """By a fault of its own it fails anywhere; by one of the node's it may succeed elsewhere."""
        own = isinstance(error, _OWN)
        if not own:
            desk.failed(f"{type(error).__name__}: {error}")
        work.faults += 1
        if work.done.done():
            work.ended = True
        elif not own and work.faults < TRIES:
            work.avoids |= {desk.node.name}
            self._router.add(work)
        else:
            work.ended = True
            closed = isinstance(error, PoolClosed)  # the node's, and we are not
            work.done.set_exception(SandboxError(f"node {desk.node.name}: {error}") if closed else error)

    def _pace(self, desk: Desk) -> float:
        return pace_s(len(self._router.desks), desk.mean_s)

    def _room(self, desk: Desk) -> int:
        """Jobs that a node should hold: from the end of one there to the next that it did not have are two paces. The
        first to end are the short ones: a node holds no more ahead than have ended there.
        """
        workers = desk.facts.workers
        return min(workers * depth(desk.mean_s, 2 * self._pace(desk)), workers + desk.ended)

    async def _gather(self) -> None:
        try:
            async for node in self._members.joined():
                self._met.add(node)
                self._start(self._serve(node))
        except HeadLost as error:
            await self._leave(f"the cluster is lost: {error}")
        except OverlapError as error:
            self._failure = error
            self._some.set()

    async def _leave(self, why: str) -> None:
        """Tell whoever waits, and whoever asks later; and be gone from the cluster before Ray ends this process."""
        self._tell(why)
        self._broken = self._failure = VerifierError(f"{why}; over another one the run goes on with --resume")
        self._some.set()
        self._fail(self._broken)
        await self._end()

    async def _serve(self, node: Node) -> None:
        """A node from its first word to its last."""
        desk, name = Desk(node, self._take, self._pace), node.name
        try:
            await desk.open()
            if name in self._router.desks:
                raise NodeRefused("another node has its name")
            if node.drains:
                raise NodeDrained
            self._refusals.pop(name, None)
            self._tell(f"node {name} judges programs: {describe_node(desk.facts)}")
            self._router.join(desk, self._room(desk))
            self._some.set()
            self._spread()
            await desk.work()
        except NodeRefused as error:
            self._refuse(node, str(error))
        except NodeDrained:
            self._tell(f"node {name} is drained, and let go")
        except NodeLost as error:
            if desk.places:
                self._tell(f"node {name} is lost ({error}): {self._lose(desk)} jobs go elsewhere")
            else:
                self._refuse(node, str(error))
        finally:
            self._router.lose(desk)
            if not self._closed:
                self._spread()
            self._met.discard(node)
            await node.close()

    def _lose(self, desk: Desk) -> int:
        """Its jobs wait for other nodes; how many they are. One that was lost too often may be what ends them."""
        lost = self._router.lose(desk)
        self._tallies.lost(desk.node.name, len(lost))
        for work in lost:
            if work.losses >= LOST_MAX and not work.done.done():
                work.done.set_exception(SandboxError(f"{work.losses} nodes were lost that had this job"))
        self._spread()
        return len(lost)

    def _why_none(self) -> str:
        refused = "".join(f"; {name}: {why}" for name, why in list(self._refusals.items())[:REFUSALS_TOLD])
        return f"no node of the cluster can judge programs after {ALONE_S:g} s{refused}"

    def _refuse(self, node: Node, why: str) -> None:
        """Said once as long as it stays the same, for it is tried again and again."""
        if self._refusals.get(node.name) != why:
            self._tell(f"node {node.name} is not used: {why}")
        self._refusals[node.name] = why

    async def _look_after(self) -> None:
        """Have no node idle beside one that has jobs ahead; fail the jobs that wait when there was no node for long."""
        alone_since = now()
        while True:
            await asyncio.sleep(1.0)
            self._router.balance()
            if self._router.desks:
                alone_since = now()
            elif now() - alone_since > ALONE_S:
                self._fail(SandboxError(f"there has been no node to judge programs for {ALONE_S:g} s"))

    def _fail(self, error: Exception) -> None:
        for work in self._router.everything():
            if not work.done.done():
                work.done.set_exception(error)

    def _start(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A fault of this room's: whoever waits hears of it, and whoever asks later."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self._closed:
            self._failure = error
            self._broken = SandboxError(f"the driver of the cluster failed: {type(error).__name__}: {error}")
            self._some.set()
            self._fail(self._broken)


def describe_node(facts: Facts) -> str:
    """What a person reads of a node."""
    cores = f" on {facts.cores} cores" if facts.workers != facts.cores else ""
    return f"{facts.workers} at once{cores}, tier {facts.tier}"
