"""Workers that do not answer: fewer of them make a verdict than of those that die, and a cancel waits for none."""

from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace
from typing import Any

import pytest
from pooling import RIGHT, SUM, pool_of, until

from sandbox import Judgement, Pool, Verdict
from sandbox.errors import HANGS_MAX, TRIES_MAX, Deaths, HeldUp, TookDown, WorkerDied, WorkerHung
from sandbox.pool import supervisor as module
from sandbox.pool.link import Link, Ticket, TryFailed
from sandbox.pool.problem_memfd import write
from sandbox.pool.shared_flags import SharedFlags
from sandbox.pool.store import ReceivedProblems
from sandbox.pool.supervisor import Supervisor, _Job, _Worker


def test_hangs_say_as_much_as_more_deaths_where_the_program_was_in_a_jail() -> None:
    hung, died = WorkerHung("gone"), WorkerDied("gone")
    deaths = Deaths()
    assert deaths.add(hung, handed=False) is None
    assert [deaths.add(hung, handed=True) for _ in range(HANGS_MAX - 1)] == [None] * (HANGS_MAX - 1)
    assert type(deaths.add(hung, handed=True)) is HeldUp
    mixed = Deaths()
    assert [mixed.add(died, handed=True) for _ in range(TRIES_MAX - 1)] == [None] * (TRIES_MAX - 1)
    assert type(mixed.add(hung, handed=True)) is TookDown
    suspected = Deaths(hangs_max=1)
    assert suspected.add(died, handed=True) is None
    assert suspected.add(hung, handed=False) is None
    assert type(suspected.add(hung, handed=True)) is HeldUp


class Deaf(Supervisor):
    """Without processes: its workers hand the job's program to a jail, and never answer."""

    def __init__(self) -> None:
        self.unused, self.other = socket.socketpair()
        super().__init__(1, "auto", "{}", "", ReceivedProblems(self.unused), SharedFlags())
        self.told: list[dict[str, Any]] = []
        self.dismissed = 0

    async def _hire(self) -> Any:
        nobody: Any = SimpleNamespace(write=len)
        worker = _Worker(nobody, nobody, nobody, self.unused)
        self.workers.add(worker)
        return worker

    def _dismiss(self, worker: Any) -> None:
        self.workers.discard(worker)
        self.dismissed += 1

    async def _reply(self, worker: Any) -> dict[str, Any]:
        self.flags.hand(worker.job.key)
        await asyncio.Event().wait()
        raise AssertionError

    async def _tell(self, head: dict[str, Any]) -> None:
        self.told.append(head)

    async def work_on(self, deadline_s: float) -> asyncio.Task[None]:
        head = {"id": 1, "deadline_s": deadline_s, "expected_s": 1.0, "turn": 0}
        job = self.jobs[1] = _Job(head, b"", write(SUM)[0])
        self._enqueue(job)
        return asyncio.create_task(self._work())

    async def end(self, task: asyncio.Task[None]) -> None:
        task.cancel()
        await asyncio.wait([task])
        self.unused.close()
        self.other.close()


@pytest.mark.parametrize("hangs_max", [HANGS_MAX, 1])
def test_a_job_under_which_workers_hang_is_given_up_after_so_many(
    hangs_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(*given: Any) -> Judgement:
        nonlocal asked
        asked += 1
        raise TryFailed(WorkerHung("a worker does not answer"), handed=True)

    async def main() -> None:
        async with pool_of(1) as pool:
            with pytest.raises(HeldUp):
                await pool._with_link(lambda link: link.ask({}, b"", Ticket(pool._counts)), hangs_max)
            assert asked == pool.stats().infrastructure_failures == hangs_max

    asked = 0
    monkeypatch.setattr(Link, "ask", hang)
    asyncio.run(main())


def test_a_worker_that_hangs_is_replaced_and_its_job_comes_back_with_where_its_program_was() -> None:
    async def main() -> None:
        supervisor = Deaf()
        task = await supervisor.work_on(0.0)
        await until(lambda: any("error" in head for head in supervisor.told))
        assert (supervisor.told[-1]["error"]["type"], supervisor.told[-1]["handed"]) == ("WorkerHung", True)
        assert supervisor.dismissed == 1
        await supervisor.end(task)

    asyncio.run(main())


def test_a_worker_that_does_not_hear_a_cancel_is_replaced_long_before_its_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_CANCEL_S", 0.0)

    async def main() -> None:
        supervisor = Deaf()
        task = await supervisor.work_on(1e6)
        await until(lambda: supervisor.flags.is_handed(1))
        supervisor._cancel(1)
        await until(lambda: supervisor.dismissed == 1)
        assert not supervisor.queue
        assert supervisor.told == [{"started": 1}]  # nobody is told of a job that nobody waits for
        await supervisor.end(task)

    asyncio.run(main())


@pytest.mark.parametrize(("error", "left"), [(HeldUp, 1), (TookDown, HANGS_MAX)])
def test_after_the_control_one_more_hang_will_do_if_there_were_some_before(
    monkeypatch: pytest.MonkeyPatch, error: type[TookDown], left: int
) -> None:
    asked: list[tuple[str, int]] = []
    ask = Pool._ask_whole

    async def fail(pool: Pool, job: Any, ticket: Any) -> Judgement:
        asked.append((job.problem.id, job.hangs_max))
        if job.problem.id == SUM.id:
            raise error("a worker does not answer")
        return await ask(pool, job, ticket)

    monkeypatch.setattr(Pool, "_ask_whole", fail)

    async def main() -> None:
        async with pool_of(1) as pool:
            done = await pool.judge(SUM, RIGHT)
            assert (done.verdict, done.cases[0].message[:19]) == (Verdict.RE, "took down its judge")

    asyncio.run(main())
    assert asked == [("sum", HANGS_MAX), ("control", HANGS_MAX), ("sum", left)]
