"""A supervisor ends in order, whatever comes in beside its end."""

from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from sandbox import Case, Problem
from sandbox.pool.problem_memfd import write
from sandbox.pool.shared_flags import SharedFlags
from sandbox.pool.store import ReceivedProblems
from sandbox.pool.supervisor import Supervisor, _Job

PROBLEM = Problem("p", "stdio", (Case("", "1"),))


class Deaf(Supervisor):
    """Without processes: the one worker's answer comes when the test says so."""

    def __init__(self) -> None:
        self.unused, self.other = socket.socketpair()
        super().__init__(1, "auto", "{}", "", ReceivedProblems(self.unused), SharedFlags())
        self.answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

    async def _hire(self) -> Any:
        return SimpleNamespace(job=None, retires=False, writer=SimpleNamespace(write=len), problems=self.unused)

    async def _reply(self, worker: Any) -> dict[str, Any]:
        return await self.answer

    async def _tell(self, head: dict[str, Any]) -> None:
        await asyncio.sleep(0)


@pytest.mark.parametrize("ticks", range(8))
def test_a_supervisor_ends_whenever_an_answer_comes_in_beside_its_end(ticks: int) -> None:
    async def main() -> None:
        supervisor = Deaf()
        job = _Job({"id": 1, "deadline_s": 60.0, "expected_s": 1.0, "turn": 0}, b"", write(PROBLEM)[0])
        supervisor.jobs[1] = job
        supervisor._enqueue(job)
        work = asyncio.create_task(supervisor._work())
        for _ in range(8):
            await asyncio.sleep(0)
        supervisor.answer.set_result({"id": 1, "error": {"type": "SandboxError", "text": ""}})
        for _ in range(ticks):
            await asyncio.sleep(0)
        work.cancel()
        for _ in range(8):
            await asyncio.sleep(0)
        assert work.cancelled()
        supervisor.unused.close()
        supervisor.other.close()

    asyncio.run(main())
