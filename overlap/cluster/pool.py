"""Many nodes behind the methods of one sandbox pool.

consumes  judge(problem, program, turn)          produces  a Judgement, or raises SandboxError
waits     for a node with room, then for its answer; woken by either; cancelling it withdraws the job

A job is on one node at a time. When that is lost, or fails by a fault that is not the job's, the job goes to another
node; a lost node gets no more calls, so a job has one answer. Nodes that join get work at once. Without any node jobs
wait for ``ALONE_S``, then they fail. A cluster that has lost its head is left.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from overlap.cluster.desk import Desk, NodeWork, Router, pace_s
from overlap.cluster.members import RayMembers, RayNode
from overlap.cluster.nodes import HELLO_S, HeadLost, NodeLost, NodeRefused, NodeReply, answer_within
from overlap.core import ClusterFigures, NodeFigures
from overlap.core.clock import now
from overlap.core.errors import OverlapError, VerifierError
from sandbox.core.nouns import Judgement, Program
from sandbox.core.problem import Problem
from sandbox.errors import CheckerError, InvalidProblem, InvalidProgram, PoolClosed, SandboxError, from_wire
from sandbox.pool.judgement_cache import JudgementCache

ALONE_S = 60.0
TRIES = 4
"""Nodes that a job may fail on by a fault of theirs."""
REFUSALS_TOLD = 3
LOST_MAX = 8
"""Nodes that may be lost with a job."""
DIGESTS = 4096
"""Problems whose digests are known."""
_OWN = (InvalidProblem, InvalidProgram, CheckerError)


class ClusterPool:
    """See the module; made anywhere, begun and ended by ``async with``. ``tell`` gets a line for each node that joins,
    is refused or is lost.
    """

    def __init__(self, members: RayMembers, *, tell: Callable[[str], None] = print, judge_once: bool = True) -> None:
        self._members, self._tell, self._router = members, tell, Router()
        self._once = JudgementCache() if judge_once else None
        self._digests = OrderedDict[int, tuple[Problem, str, int]]()
        self._numbers = 0
        self._spreading = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._met: set[RayNode] = set()
        self._some = asyncio.Event()
        self._why: Exception | None = None
        """The reason that nothing is judged any more; None while programs are judged."""
        self._ending: asyncio.Task[None] | None = None
        self._refusals: dict[str, str] = {}
        self._did: defaultdict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0])
        """Work of each node since the last report: programs judged, the seconds that they ran, jobs lost."""
        self._told_s: float | None = None

    async def __aenter__(self) -> ClusterPool:
        """Return when the first node is there. Raises SandboxError where none is in time, and the error that ended the
        search for nodes.
        """
        self._start(self._gather())
        self._start(self._look_after())
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.__aexit__)
            await self._some.wait()
            if self._why is not None:
                raise self._why
            stack.pop_all()
        return self

    async def __aexit__(self, *exc_info: Any) -> None:
        ending = self._stop(PoolClosed("the pool was closed while this job waited"))
        try:
            await asyncio.shield(ending)
        finally:
            if not ending.done():  # we are cancelled: agents that have not ended by now are left to themselves
                ending.cancel()
                await asyncio.wait([ending])

    def _stop(self, error: BaseException) -> asyncio.Task[None]:
        """Raise the error in all calls that wait, and in later ones. Then end the agents and leave the cluster: once
        for all callers, for when one call has left the cluster, another one can end no agents.
        """
        if self._ending is None:
            if isinstance(error, HeadLost):
                self._tell(why := f"the cluster is lost: {error}")
                self._why = VerifierError(f"{why}; over another one the run goes on with --resume")
            elif isinstance(error, OverlapError | SandboxError):
                self._why = error
            else:
                self._why = SandboxError(f"the driver of the cluster failed: {type(error).__name__}: {error}")
            self._some.set()
            self._fail(self._why)
            self._ending = asyncio.create_task(self._end(), name="end the agents")
        return self._ending

    async def _end(self) -> None:
        """Also agents are ended that no task had met yet."""
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        try:
            if tasks:
                await asyncio.wait(tasks)
            await asyncio.gather(*(node.close() for node in self._met))
        finally:
            await self._members.close()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._stop(error)

    def _fail(self, error: Exception) -> None:
        for work in self._router.everything():
            work.done.set_exception(error)

    async def judge(self, problem: Problem, program: Program, *, turn: int = 0) -> Judgement:
        """Judge one program on some node. Raises SandboxError for our faults, VerifierError without a cluster.

        ``queue_s`` is the time until it began there, except the time of its answer on the network; ``run_s`` is 0
        when the judgement was made for an equal program.
        """
        start, known = now(), self._digest(problem)
        ask = partial(self._ask, known, program, turn, start)  # a closure would be a dozen objects
        if self._once is None:
            return await ask()
        done, shared = await self._once.get(_same_key(known[1], program), problem.limits, ask)
        return dataclasses.replace(done, queue_s=now() - start, run_s=0.0) if shared else done

    def pids(self) -> tuple[int, ...]:
        """None: its processes are other machines'."""
        return ()

    @property
    def concurrency(self) -> int:
        """Programs that all nodes judge at once now, at least 1."""
        return max(1, sum(desk.facts.workers for desk in self._router.desks.values()))

    def take_nodes(self) -> ClusterFigures:
        """Return what each node did since the last call."""
        at_s, last_s, did, desks = now(), self._told_s, self._did, self._router.desks
        self._told_s, self._did, figures = at_s, defaultdict(did.default_factory), []
        for name in {**desks, **did}:
            judged, run_s, lost = did[name]
            made = NodeFigures(name, judged=int(judged), run_s=run_s, lost=int(lost))
            if desk := desks.get(name):
                made = made._replace(workers=desk.facts.workers, tier=desk.facts.tier)
            figures.append(made)
        return ClusterFigures(0.0 if last_s is None else at_s - last_s, tuple(figures))

    def _digest(self, problem: Problem) -> tuple[Problem, str, int]:
        """With its digest, which is equal for problems that are judged alike, and its bytes as they are sent."""
        known = self._digests.get(id(problem))  # the entry holds the object, so no other can have its id
        if known is None:
            text = json.dumps(problem.to_json(), sort_keys=True).encode("utf-8", "surrogatepass")
            known = self._digests[id(problem)] = problem, hashlib.sha256(text).hexdigest(), len(text)
            if len(self._digests) > DIGESTS:
                self._digests.popitem(last=False)
        else:
            self._digests.move_to_end(id(problem))
        return known

    async def _ask(self, known: tuple[Problem, str, int], program: Program, turn: int, asked_s: float) -> Judgement:
        if self._why:  # also for a call that waited for an equal job
            raise self._why
        self._numbers += 1
        done: asyncio.Future[Judgement] = asyncio.get_running_loop().create_future()
        work = NodeWork(self._numbers, turn, *known, program, asked_s, done)
        self._router.add(work)
        self._spread()
        try:
            return await done
        finally:
            if work.desk is not None:
                self._router.withdraw(work)
                self._spread()

    def _spread(self) -> None:
        """Give jobs to nodes when all tasks that are ready now have run."""
        if not self._spreading:
            self._spreading = True
            asyncio.get_running_loop().call_soon(self._assign)

    def _assign(self) -> None:
        self._spreading = False
        self._router.assign()

    async def _gather(self) -> None:
        async for node in self._members.joined():
            self._met.add(node)
            self._start(self._serve(node))

    async def _serve(self, node: RayNode) -> None:
        """A node from its first word to its last."""
        desk, name = None, node.name
        try:
            desk = Desk(node, facts := await answer_within(node.hello(), HELLO_S))
            self._refusals.pop(name, None)
            self._tell(f"node {name} judges programs: {facts}")
            self._router.join(desk)
            self._some.set()
            self._spread()
            while True:
                desk.pace_s = pace_s(len(self._router.desks), desk.mean_s)
                self._take(desk, await desk.exchange())
                await desk.rest()
        except (NodeRefused, NodeLost) as error:
            if isinstance(error, HeadLost):
                raise
            if desk is not None and self._router.desks.get(name) is desk:
                self._tell(f"node {name} is lost ({error}): {self._lose(desk)} jobs go elsewhere")
            elif self._refusals.get(name) != str(error):  # said once: it is tried again and again
                self._refusals[name] = str(error)
                self._tell(f"node {name} is not used: {error}")
        finally:
            if desk is not None:
                self._lose(desk)
            self._met.discard(node)
            await node.close()

    def _lose(self, desk: Desk) -> int:
        """Have its jobs wait for other nodes, and return their number. A job lost ``LOST_MAX`` times fails: it may be
        what ends the nodes.
        """
        lost = self._router.lose(desk)
        for work in lost:
            if work.losses >= LOST_MAX and not work.done.done():
                work.done.set_exception(SandboxError(f"{work.losses} nodes were lost that had this job"))
        if lost:
            self._did[desk.node.name][2] += len(lost)
        self._spread()
        return len(lost)

    def _take(self, desk: Desk, reply: NodeReply) -> None:
        heard_s = now()
        for number, judgement, fault, ended_s in reply.answers:
            work = desk.answered(number)
            if work is None:
                continue
            if judgement is None:
                self._failed(desk, work, from_wire(dict(fault or {})))
            else:
                self._judged(desk, work, judgement, heard_s - (reply.said_s - ended_s))
        for number in reply.returned:
            if (work := desk.answered(number)) is not None:
                self._router.add(work)
        if reply.answers or reply.returned:
            self._router.join(desk)
            self._spread()

    def _judged(self, desk: Desk, work: NodeWork, judgement: Judgement, ended_s: float) -> None:
        name, run_s = desk.node.name, judgement.run_s
        desk.took(run_s)
        did = self._did[name]
        did[0] += 1
        did[1] += run_s
        if not work.done.done():  # no caller has seen it: to make another one takes several times as long
            object.__setattr__(judgement, "queue_s", max(0.0, ended_s - run_s - work.asked_s))
            object.__setattr__(judgement, "node", name)
            work.done.set_result(judgement)

    def _failed(self, desk: Desk, work: NodeWork, error: SandboxError) -> None:
        """By a fault of its own it fails anywhere; by one of the node's it may succeed elsewhere."""
        own = isinstance(error, _OWN)
        if not own:
            desk.faults.append(f"{type(error).__name__}: {error}")
        work.faults += 1
        if work.done.done():
            return
        if not own and work.faults < TRIES:
            work.avoids |= {desk.node.name}
            self._router.add(work)
        else:
            closed = isinstance(error, PoolClosed)  # the node's, and we are not
            work.done.set_exception(SandboxError(f"node {desk.node.name}: {error}") if closed else error)

    async def _look_after(self) -> None:
        """Have no node idle beside one that has jobs ahead; fail the jobs that wait when there was no node for long."""
        alone_s = 0.0  # counted, for a driver that was suspended has not waited
        while True:
            await asyncio.sleep(1.0)
            self._router.balance()
            alone_s = 0.0 if self._router.desks else alone_s + 1.0
            if alone_s >= ALONE_S:
                refused = "".join(f"; {name}: {why}" for name, why in list(self._refusals.items())[:REFUSALS_TOLD])
                none = SandboxError(f"there was no node of the cluster to judge programs for {ALONE_S:g} s{refused}")
                self._fail(none)
                if not self._some.is_set():
                    raise none


def _same_key(digest: str, program: Program) -> str:
    """Equal for programs that are judged alike, by the problem of that digest."""
    text = f"{(digest, program.language, program.files, program.entry)!r}{program.source}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
