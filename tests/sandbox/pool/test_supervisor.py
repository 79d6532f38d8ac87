"""A supervisor without processes: how it ends, and workers that retire, hang or do not hear a cancel."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from pooling import SUM, until, within

from sandbox.pool import supervisor as module
from sandbox.pool.messages import SharedFlags
from sandbox.pool.problem_memfd import write
from sandbox.pool.store import ReceivedProblems
from sandbox.pool.supervisor import Supervisor, _Job, _Worker


class Unmanned(Supervisor):
    """Its workers hand each job's program to a jail, and answer when the test says what."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(1, "auto", "{}", "", ReceivedProblems(sock), SharedFlags())
        self.sock = sock
        self.replies: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.told: list[dict[str, Any]] = []
        self.hirings, self.dismissals = 0, 0

    async def _hire(self) -> _Worker:
        self.hirings += 1
        nobody: Any = SimpleNamespace(write=len)
        worker = _Worker(nobody, nobody, nobody, self.sock)
        self.workers.add(worker)
        return worker

    def _dismiss(self, worker: _Worker) -> None:
        self.workers.discard(worker)
        self.dismissals += 1

    async def _reply(self, worker: _Worker) -> dict[str, Any]:
        assert worker.job is not None
        self.flags.hand(worker.job.key)
        reply = await self.replies.get()
        worker.retires = reply.pop("retires", False)
        return reply

    async def _tell(self, head: dict[str, Any]) -> None:
        self.told.append(head)
        await asyncio.sleep(0)

    def give(self, key: int, deadline_s: float = 60.0) -> None:
        head = {"id": key, "deadline_s": deadline_s, "expected_s": 1.0, "turn": 0}
        job = self.jobs[key] = _Job(head, b"", write(SUM)[0])
        self._enqueue(job)


@asynccontextmanager
async def supervising(jobs: int = 1, deadline_s: float = 60.0) -> AsyncIterator[Unmanned]:
    """A supervisor at work on so many jobs, which must end when it is told to."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        supervisor = Unmanned(ours)
        for key in range(1, jobs + 1):
            supervisor.give(key, deadline_s)
        work = asyncio.create_task(supervisor._work())
        yield supervisor
        work.cancel()
        await asyncio.wait([work], timeout=10)
        assert work.cancelled()


@pytest.mark.parametrize("ticks", range(8))
@within(supervising)
async def test_a_supervisor_ends_whenever_an_answer_comes_in_beside_its_end(supervisor: Unmanned, ticks: int) -> None:
    for _ in range(8):
        await asyncio.sleep(0)
    supervisor.replies.put_nowait({"id": 1, "error": {"type": "SandboxError", "text": ""}})
    for _ in range(ticks):
        await asyncio.sleep(0)


@within(lambda: supervising(jobs=3))
async def test_a_worker_that_retires_is_dismissed_and_the_next_job_gets_another(supervisor: Unmanned) -> None:
    for key in (1, 2, 3):
        supervisor.replies.put_nowait({"id": key, "judgement": {"tier": "A"}, "retires": key == 2})
    await until(lambda: [head["id"] for head in supervisor.told if "judgement" in head] == [1, 2, 3])
    assert (supervisor.hirings, supervisor.dismissals) == (2, 1)


@within(lambda: supervising(deadline_s=0.0))
async def test_a_worker_that_hangs_is_replaced_and_its_job_comes_back_with_where_its_program_was(
    supervisor: Unmanned,
) -> None:
    await until(lambda: any("error" in head for head in supervisor.told))
    assert (supervisor.told[-1]["error"]["type"], supervisor.told[-1]["handed"]) == ("WorkerHung", True)
    assert supervisor.dismissals == 1


@within(lambda: supervising(deadline_s=1e6))
async def test_a_worker_that_does_not_hear_a_cancel_is_replaced_long_before_its_deadline(
    supervisor: Unmanned, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CANCEL_S", 0.0)
    await until(lambda: supervisor.flags.is_handed(1))
    supervisor._cancel(1)
    await until(lambda: supervisor.dismissals == 1)
    assert not supervisor.queue
    assert supervisor.told == [{"started": 1}]  # nobody is told of a job that nobody waits for
