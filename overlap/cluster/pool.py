"""Many nodes behind the methods of one sandbox pool.

consumes  judge(problem, program, turn)          produces  a Judgement, or raises SandboxError
waits     for a node with room, then for its answer; woken by either; cancelling it withdraws the job

A job lies on one node at a time. Where that dies or falls silent, or fails by a fault that is not the job's, it goes to
another, and of its answers one counts. Nodes that join get work at once; one that is drained ends what it has, and is
let go. Without any node jobs wait for ``ALONE_S``, then they fail. A cluster that has lost its head is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from overlap.aio import unwrapped
from overlap.clock import now
from overlap.cluster.desk import Desk, pace_s
from overlap.cluster.nodes import (
    Facts,
    HeadLost,
    Members,
    Node,
    NodeAnswer,
    NodeDrained,
    NodeLost,
    NodeRefused,
    NodeSilent,
)
from overlap.cluster.nodes import NodeJob as Sent
from overlap.cluster.pacer import Pacer
from overlap.cluster.problems import Digest, Digests, same_key
from overlap.cluster.router import RoutedJob, Router, depth
from overlap.cluster.tally import Tallies
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


@dataclasses.dataclass(slots=True, eq=False)
class _Work:
    problem: Problem
    digest: Digest
    program: Program
    asked_s: float
    done: asyncio.Future[Judgement]
    given_s: float = 0.0
    faults: int = 0


class ClusterPool:
    """See the module; made anywhere, begun and ended by ``async with``. ``tell`` gets a line for each node that joins,
    is refused, falls silent, comes back, drains or is lost.
    """

    def __init__(self, members: Members, *, tell: Callable[[str], None] = print, judge_once: bool = True) -> None:
        self._members, self._tell = members, tell
        self._router, self._digests, self._tallies = Router(), Digests(), Tallies()
        self._desks: dict[str, Desk] = {}
        self._once = JudgementCache() if judge_once else None
        self._pacer, self._numbers = Pacer(), 0
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
            self._start(self._count_alone())
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
        return max(1, sum(self._desks[name].facts.workers for name in self._router.nodes))

    def take_nodes(self) -> ClusterFigures:
        """What each node did since the last call."""
        return self._tallies.take({name: self._desks[name] for name in self._router.nodes}, now())

    def nodes(self) -> dict[str, Facts]:
        """The nodes that get jobs now."""
        return {name: self._desks[name].facts for name in self._router.nodes}

    async def _ask(self, problem: Problem, digest: Digest, program: Program, turn: int, asked_s: float) -> Judgement:
        if self._closed:  # one who waited for an equal job is next
            raise PoolClosed("the pool is closed")
        if self._broken:
            raise self._broken
        self._numbers += 1
        work = _Work(problem, digest, program, asked_s, asyncio.get_running_loop().create_future())
        job = RoutedJob(self._numbers, turn, work)
        self._router.add(job)
        self._spread()
        try:
            return await work.done
        finally:
            if not job.ended:
                if node := self._router.withdraw(job):
                    self._desks[node].withdraw(job.number, digest.text)
                self._spread()

    def _spread(self) -> None:
        """Give jobs to nodes when everybody who runs now has asked."""
        if not self._spreading:
            self._spreading = True
            asyncio.get_running_loop().call_soon(self._assign)

    def _assign(self) -> None:
        self._spreading, given_s = False, now()
        for node, job in self._router.assign():
            work: _Work = job.work
            work.given_s = given_s
            sent = Sent(job.number, job.attempt, job.turn, work.digest.text, work.program)
            self._desks[node].give(sent, work.problem, work.digest.size)

    def _take(self, desk: Desk, answers: Sequence[NodeAnswer]) -> None:
        """Raises NodeDrained."""
        name, heard_s = desk.node.name, now()
        for answer in answers:
            job = self._router.answered(name, answer.number, answer.attempt)
            if job is None:
                continue
            if answer.judgement is None:
                self._failed(desk, job, from_wire(dict(answer.fault or {})))
            else:
                self._judged(desk, job.work, answer.judgement, min(heard_s, answer.ended_s - desk.offset.ahead_s))
        if answers:
            self._router.resize(name, self._room(desk))
            self._spread()
        if desk.node.drains:
            self._drain(desk)

    def _judged(self, desk: Desk, work: _Work, judgement: Judgement, ended_s: float) -> None:
        desk.done(work.digest.text, judgement.run_s)
        self._tallies.judged(desk.node.name, judgement.run_s)
        if not work.done.done():
            began_s = max(work.given_s, ended_s - judgement.run_s)
            queue_s = max(0.0, began_s - work.asked_s)
            work.done.set_result(placed(judgement, queue_s, desk.node.name))

    def _drain(self, desk: Desk) -> None:
        name = desk.node.name
        held = self._router.held(name)
        if not desk.draining:
            desk.draining = True
            self._router.drain(name)
            self._tell(f"node {name} drains: {held} jobs end there, and it gets no other")
        if not held:
            raise NodeDrained

    def _failed(self, desk: Desk, job: RoutedJob, error: SandboxError) -> None:
        """By a fault of its own it fails anywhere; by one of the node's it may succeed elsewhere."""
        work: _Work = job.work
        own = isinstance(error, _OWN)
        desk.failed(work.digest.text, f"{type(error).__name__}: {error}", node=not own)
        work.faults += 1
        if work.done.done():
            return
        if not own and work.faults < TRIES:
            job.avoids |= {desk.node.name}
            self._router.add(job)
        else:
            closed = isinstance(error, PoolClosed)  # the node's, and we are not
            work.done.set_exception(SandboxError(f"node {desk.node.name}: {error}") if closed else error)

    def _pace(self, desk: Desk) -> float:
        return pace_s(len(self._desks), desk.mean_s)

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
        desk = Desk(node, self._take, self._pace, self._pacer)
        try:
            await desk.open()
            if node.name in self._desks:
                raise NodeRefused("another node has its name")
            self._desks[node.name] = desk
            self._refusals.pop(node.name, None)
            self._tell(f"node {node.name} judges programs: {describe_node(desk.facts)}")
            while True:
                await self._work(desk)
                self._tell(f"node {node.name} is silent: {self._lose(node)} jobs go elsewhere")
                self._spread()
                await desk.again()
                self._tell(f"node {node.name} speaks again")
        except NodeRefused as error:
            self._refuse(node, str(error))
        except NodeDrained:
            self._tell(f"node {node.name} is drained, and let go")
        except NodeSilent:
            self._refuse(node, "it did not say what it is")
        except NodeLost as error:
            if self._desks.get(node.name) is desk:
                self._tell(f"node {node.name} is lost ({error}): {self._lose(node)} jobs go elsewhere")
            else:
                self._refuse(node, str(error))
        finally:
            if self._desks.get(node.name) is desk:
                self._router.lose(node.name)
                del self._desks[node.name]
            if not self._closed:
                self._spread()
            self._met.discard(node)
            await node.close()

    def _lose(self, node: Node) -> int:
        """Its jobs wait for other nodes; how many they are. One that was lost too often may be what ends them."""
        lost = self._router.lose(node.name)
        self._tallies.lost(node.name, len(lost))
        for job in lost:
            if job.attempt >= LOST_MAX and not job.work.done.done():
                job.work.done.set_exception(SandboxError(f"{job.attempt} nodes were lost that had this job"))
        return len(lost)

    def _why_none(self) -> str:
        refused = "".join(f"; {name}: {why}" for name, why in list(self._refusals.items())[:REFUSALS_TOLD])
        return f"no node of the cluster can judge programs after {ALONE_S:g} s{refused}"

    def _refuse(self, node: Node, why: str) -> None:
        """Said once as long as it stays the same, for it is tried again and again."""
        if self._refusals.get(node.name) != why:
            self._tell(f"node {node.name} is not used: {why}")
        self._refusals[node.name] = why

    async def _work(self, desk: Desk) -> None:
        """Until the node is silent. Raises NodeLost, NodeDrained."""
        if desk.node.drains:
            raise NodeDrained
        self._router.join(desk.node.name, self._room(desk))
        self._some.set()
        self._spread()
        with contextlib.suppress(NodeSilent), unwrapped():
            await desk.work()

    async def _count_alone(self) -> None:
        """Fail the jobs that wait when there has been no node for long."""
        alone_since = now()
        while True:
            await asyncio.sleep(1.0)
            if self._router.nodes:
                alone_since = now()
            elif now() - alone_since > ALONE_S:
                self._fail(SandboxError(f"there has been no node to judge programs for {ALONE_S:g} s"))

    def _fail(self, error: Exception) -> None:
        for job in self._router.everything():
            if not job.work.done.done():
                job.work.done.set_exception(error)

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
