"""The agent that runs on a node: a Ray actor that owns one object of ours, a ``NodeJudge``, which judges programs, or
a ``Hosted`` process. This module imports no Ray.

consumes  parcels of jobs; bytes of calls     produces  an answer to each job as it ends; bytes of replies
waits     in ``exchange`` for the first of these, for as long as its caller says; woken by it, and by ``nudge``
ends      with ``close``, or when its driver has not called it for long, whatever Ray reports
"""

from __future__ import annotations

import asyncio
import os
import pickle
import threading
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from functools import cached_property
from io import FileIO
from pathlib import Path
from typing import Any

from overlap.cluster.nodes import (
    GRACE_S,
    HELLO_S,
    ORPHAN_S,
    Facts,
    NodeAnswer,
    NodeJob,
    NodeParcel,
    NodeReply,
    code_digest,
)
from overlap.core.aio import threaded
from overlap.core.clock import now
from overlap.core.errors import ConfigError, OverlapError
from overlap.policy.check import policy_digest
from overlap.process.calls import connect
from overlap.process.child_processes import ChildProcesses
from overlap.process.process_tree import read_proc
from overlap.process.scratch import scratch_directory
from overlap.verify.guarded_pool import GuardedPool
from overlap.verify.verifier import PROBE, PROBE_PROGRAM
from overlap.weights.pieces import WeightEndpoint
from sandbox.core.problem import Problem
from sandbox.errors import ProblemLost, to_wire
from sandbox.pool.pool import Pool
from sandbox.pool.quotas import cores

CALL_BYTES = 4 << 20
"""Bytes of a stream in one call, at most."""
_RAYS_OWN = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")
"""Ray sets these for its workers: an actor that asks for nothing sees no GPU, and has one thread."""


class NodeActor:
    """``made`` is the pickle of a function that makes its object, called in this process; the object closes within
    ``close_s``.

    A coroutine checks whether the actor is an orphan; before its first call, when none runs, a thread does.
    """

    def __init__(self, made: bytes, close_s: float) -> None:
        self._made, self._close_s, self._authenticated = made, close_s, forget_ray()
        self._alone = threading.Timer(ORPHAN_S, os._exit, [1])
        self._alone.daemon = True
        self._alone.start()
        self._watching: asyncio.Task[None] | None = None
        self._busy, self._called_s = 0, 0.0
        as_before_ray()

    @cached_property
    def _thing(self) -> Any:
        """Made when it is first called: one of another version may not be here, and ``identity`` says so before."""
        return pickle.loads(self._made)()

    async def identity(self) -> tuple[bool, str]:
        """Return whether its Ray requires a token, and the digest of its code. Called first."""
        self._alone.cancel()
        self._called_s = now()
        self._watching = self._watching or asyncio.create_task(self._watch(), name="watch the driver")
        return self._authenticated, code_digest()

    async def call(self, name: str, *args: Any) -> Any:
        """Return the result of that method of its object."""
        self._called_s = now()
        self._busy += 1
        try:
            return await getattr(self._thing, name)(*args)
        finally:
            self._busy -= 1
            self._called_s = now()

    async def _watch(self) -> None:
        """End this process when its driver is gone. During a call, which may be long, the driver may make no other."""
        while (left := self._called_s + (HELLO_S if self._busy else ORPHAN_S) - now()) > 0:
            await asyncio.sleep(min(left, ORPHAN_S))
            await asyncio.sleep(GRACE_S)  # a machine that was suspended reads first what came meanwhile
        try:
            async with asyncio.timeout(self._close_s):
                await self._thing.close()
        finally:
            os._exit(1)  # what is left is ended by the sandbox's own processes, and by the reaper


def forget_ray() -> bool:
    """Remove all about the cluster from the environment of this process, so that no process that it starts can join the
    cluster. Return whether there was a token.
    """
    authenticated = os.environ.get("RAY_AUTH_MODE") == "token"
    for name in [name for name in os.environ if name.startswith("RAY_")]:
        del os.environ[name]
    return authenticated


def as_before_ray() -> None:
    """Set what Ray has changed for this process to what it was when the node was started."""
    raylet = dict(entry.partition(b"=")[::2] for entry in read_proc(os.getppid(), "environ").split(b"\0"))
    for name in _RAYS_OWN:
        os.environ.pop(name, None)
        if (value := raylet.get(name.encode())) is not None:
            os.environ[name] = value.decode()


MakePool = Callable[[int], Pool]
"""Called on the node, with the most programs that it may judge at once."""


class NodeJudge:
    """Judges with the pool of ``make_pool(workers)``; further jobs wait here, where they can be given back."""

    def __init__(self, make_pool: MakePool, workers: int) -> None:
        pool = make_pool(workers)
        self._pool, self._workers = GuardedPool(pool), pool.workers
        self._problems: dict[str, Problem] = {}
        self._waiting: list[tuple[int, int, NodeJob, Problem | None]] = []
        self._running: dict[int, asyncio.Task[None]] = {}
        self._answers: list[NodeAnswer] = []
        self._some = asyncio.Event()

    async def hello(self) -> Facts:
        """Facts of this node; the tier is that of a program that was judged. Raises SandboxError."""
        await self._pool.open()
        judged = await self._pool.judge(PROBE, PROBE_PROGRAM)
        return Facts(cores(), self._workers, judged.tier)

    async def exchange(self, packed: bytes) -> NodeReply:
        """Accept jobs, cancel the withdrawn ones, and return the answers since the last call, once there is one or the
        parcel's time is over.
        """
        parcel: NodeParcel = pickle.loads(packed)
        self._problems |= parcel.problems
        gone = set(parcel.withdrawn)
        for number in gone & self._running.keys():
            self._running.pop(number).cancel()
        self._waiting = [entry for entry in self._waiting if entry[1] not in gone]
        self._waiting += [(job.turn, job.number, job, self._problems.get(job.problem)) for job in parcel.jobs]
        self._waiting.sort()
        for digest in parcel.forgotten:
            self._problems.pop(digest, None)
        self._begin()
        cut = max(0, len(self._waiting) - parcel.spare)
        returned, self._waiting = [number for _, number, *_ in self._waiting[cut:]], self._waiting[:cut]
        if not (self._answers or returned):
            self._some.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(parcel.wait_s):
                    await self._some.wait()
        answers, self._answers = self._answers, []
        return NodeReply(answers, returned, len(self._running) + len(self._waiting), now())

    async def nudge(self) -> None:
        """Have ``exchange`` wait no longer."""
        self._some.set()

    def _begin(self) -> None:
        while self._waiting and len(self._running) < self._workers:
            _, number, job, problem = self._waiting.pop(0)
            self._running[number] = asyncio.create_task(self._judge(job, problem), name=f"job {number}")

    async def _judge(self, job: NodeJob, problem: Problem | None) -> None:
        try:
            if problem is None:
                raise ProblemLost(f"the problem {job.problem[:12]} did not reach the node")
            judgement = await self._pool.judge(problem, job.program, turn=job.turn)
            answer = NodeAnswer(job.number, judgement, None, now())
        except Exception as error:  # also one that is no SandboxError: a job without an answer waits for ever
            answer = NodeAnswer(job.number, None, to_wire(error), now())
        del self._running[job.number]
        self._answers.append(answer)
        self._some.set()
        self._begin()

    async def close(self) -> None:
        """End the sandbox."""
        self._waiting.clear()
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._pool.close()


class Hosted(WeightEndpoint):
    """A process of ours here for a driver on another machine, started once; ``name`` is what its life is called. When
    this process ends, the reaper clears up.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name, self._stack = name, AsyncExitStack()
        self._replies, self._some = bytearray(), asyncio.Event()
        self._death = ""

    async def start(self, title: str, module: str, environment: Mapping[str, str]) -> str:
        """Start ``python -m module FD`` in a scratch directory of its own; the path of a folder there for files of the
        process, which is not there yet. Raises OverlapError.
        """
        # Detached: Ray kills all children of a worker that it ends.
        scratch, _ = await self._stack.enter_async_context(threaded(scratch_directory(detached=True)))
        life = ChildProcesses(self._name, self._died, scratch)
        self._stack.push_async_callback(life.close)
        with FileIO(scratch / "log", "a") as out:
            reader, self._writer = await connect(life, title, module, environment, stdout=out)
        self._stack.callback(self._writer.close)
        self._log = self._stack.enter_context(FileIO(scratch / "log"))
        self._reading = asyncio.create_task(self._read(reader), name=f"listen to {title}")
        return str(scratch / "files")

    async def exchange(self, data: bytes, wait_s: float) -> tuple[bytes, bytes, str]:
        """Pass on bytes of calls, and return what came since the last exchange, as soon as there is any, or after
        ``wait_s``: bytes of replies, bytes of its output, and how it has ended. One call at a time.
        """
        self._writer.write(data)
        if not (self._replies or self._death):
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._some.wait()
        self._some.clear()
        replies, death, self._death = bytes(self._replies[:CALL_BYTES]), self._death, ""
        del self._replies[:CALL_BYTES]
        return replies, self._log.read(CALL_BYTES), death

    async def nudge(self) -> None:
        """Have ``exchange`` wait no longer, or the next one not at all."""
        self._some.set()

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function in a thread here and return its result."""
        return await asyncio.to_thread(function, *args)

    async def close(self) -> None:
        """End the process and what it has started, and remove all that is theirs."""
        await self._stack.aclose()
        await super().close()

    def _died(self, how: str) -> OverlapError:
        self._death = how
        self._some.set()
        return OverlapError(how)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with suppress(ConnectionError):  # its end is seen by its life
            while data := await reader.read(CALL_BYTES):
                self._replies += data
                self._some.set()


def same_policy(policy: Path, digest: str) -> bool:
    """Return whether the checkpoint is here and has that digest."""
    with suppress(ConfigError):
        return policy_digest(policy) == digest
    return False
