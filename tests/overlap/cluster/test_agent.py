"""What an agent makes of jobs, whatever its sandbox does; and an actor whose driver ends before it has called it, or
during a call that is long, does not stay for ever.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest

from overlap.cluster import agent as agent_module
from overlap.cluster.agent import NodeActor, NodeJudge
from overlap.cluster.nodes import GRACE_S, HELLO_S, ORPHAN_S, NodeJob, NodeParcel, NodeReply
from overlap.core.clock import now
from sandbox.core.nouns import Case, Judgement, Program, Verdict
from sandbox.core.problem import Problem
from sandbox.errors import ProblemLost, ToolchainMissing, from_wire

pytestmark = pytest.mark.virtual
Make = Callable[..., NodeActor]
PROBLEMS = {"p": Problem("p", "stdio", (Case("", "1"),))}


class FakePool:
    """Judges after 0.1 s; a program is what it raises."""

    def __init__(self) -> None:
        self.cancelled = self.opened = self.judged = self.running = self.most = 0
        self.workers = 3

    async def __aenter__(self) -> FakePool:
        self.opened += 1
        return self

    async def __aexit__(self, *exc_info: Any) -> None:
        self.opened -= 1

    async def judge(self, problem: Problem, program: Program, *, turn: int = 0) -> Judgement:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(0.1)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
        self.judged += 1
        if program.source == "toolchain":
            raise ToolchainMissing("no g++")
        if program.source == "bug":
            raise KeyError("bug")
        return Judgement(problem.id, Verdict.AC, (), 1, 1, False, "A", "python", "", "", 0.0, 0.1)


def job(number: int, source: str = "", problem: str = "p", turn: int = 0) -> NodeJob:
    return NodeJob(number, turn, problem, Program(source))


@pytest.fixture
def pool() -> FakePool:
    return FakePool()


@pytest.fixture
def agent(pool: FakePool) -> NodeJudge:
    return NodeJudge(lambda workers: pool, 64)


async def exchange(agent: NodeJudge, *args: Any, **more: Any) -> NodeReply:
    return await agent.exchange(pickle.dumps(NodeParcel(*args, **more)))


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        (job(1, "toolchain"), ToolchainMissing, "no g"),
        (job(1, "bug"), Exception, "KeyError"),
        (job(1, problem="q"), ProblemLost, "did not reach"),
    ],
)
async def test_a_job_that_fails_is_answered_also_where_that_is_a_bug(
    given: NodeJob, error: type, text: str, agent: NodeJudge
) -> None:
    (answer,) = (await exchange(agent, [given], PROBLEMS, wait_s=1.0)).answers
    raised = from_wire(dict(answer.fault or {}))
    assert isinstance(raised, error)
    assert text in str(raised)


async def test_a_withdrawn_job_is_cancelled_and_not_answered_and_makes_room(agent: NodeJudge, pool: FakePool) -> None:
    await exchange(agent, [job(number) for number in range(1, 6)], PROBLEMS, wait_s=0.05)
    reply = await exchange(agent, withdrawn=[1, 4, 77])
    assert reply.has == 3
    await asyncio.sleep(1.0)
    assert sorted(answer.number for answer in (await exchange(agent)).answers) == [2, 3, 5]
    assert pool.cancelled == 1


async def test_the_lowest_turns_begin_first_and_no_more_at_once_than_there_are_workers(
    agent: NodeJudge, pool: FakePool
) -> None:
    jobs = [job(number, turn=turn) for number, turn in enumerate((9, 3, 5, 1, 7, 2))]
    await exchange(agent, jobs, PROBLEMS, wait_s=0.05)
    assert pool.most == 3
    await asyncio.sleep(1.0)
    ended = [answer.number for answer in (await exchange(agent)).answers]
    assert [sorted(ended[:3]), sorted(ended[3:])] == [[1, 3, 5], [0, 2, 4]]
    assert pool.most == 3


async def test_jobs_that_have_not_begun_are_given_back_the_last_ones_first_and_answered_by_nobody_here(
    agent: NodeJudge, pool: FakePool
) -> None:
    reply = await exchange(agent, [job(number) for number in range(6)], PROBLEMS, spare=2)
    assert (reply.returned, reply.has) == ([4, 5], 4)
    assert (await exchange(agent, spare=9)).returned == [3]
    await asyncio.sleep(1.0)
    assert sorted(answer.number for answer in (await exchange(agent, spare=9)).answers) == [0, 1, 2]
    assert pool.judged == 3


async def test_an_agent_says_what_its_node_is_by_a_judged_program_and_what_waits_and_what_runs_ends_with_it(
    agent: NodeJudge, pool: FakePool
) -> None:
    facts = await agent.hello()
    assert (facts.workers, facts.tier) == (3, "A")
    await exchange(agent, [job(number) for number in range(6)], PROBLEMS)
    await asyncio.sleep(0.05)
    await agent.close()
    assert (pool.cancelled, pool.judged, pool.opened) == (3, 1, 0)  # the one of the first call


class Thing:
    """What an actor has."""

    def __init__(self) -> None:
        self.closed = 0

    async def sleep(self, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "slept"

    async def close(self) -> None:
        self.closed += 1
        raise OSError("it cannot be closed")


class Ended(BaseException):
    """In place of the end of this process."""


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Make:
    def end(code: int) -> None:
        raise Ended

    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr(agent_module, "forget_ray", lambda: True)
    monkeypatch.setattr(agent_module, "as_before_ray", lambda: None)
    return lambda made=b"": NodeActor(made or pickle.dumps(Thing), 1.0)


@pytest.mark.parametrize(("called", "orphan_s", "ends"), [(False, 0.1, [1]), (True, ORPHAN_S, [])])
def test_an_actor_watches_from_the_moment_in_which_it_is_made_also_for_a_driver_of_another_version(
    make: Make, monkeypatch: pytest.MonkeyPatch, called: bool, orphan_s: float, ends: list[int]
) -> None:
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    monkeypatch.setattr(agent_module, "ORPHAN_S", orphan_s)
    actor = make(b"of another version")
    if called:
        asyncio.run(actor.identity())
    for thread in [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]:
        thread.join(ORPHAN_S / 2)
        assert not thread.is_alive()
    assert codes == ends


async def orphaned(actor: NodeActor) -> float:
    """When its process ended, s."""
    assert actor._watching is not None
    await asyncio.wait([actor._watching])
    assert isinstance(actor._watching.exception(), Ended)
    assert actor._thing.closed == 1
    return now()


async def test_an_actor_that_is_called_again_and_again_stays_and_one_that_is_not_ends(make: Make) -> None:
    actor = make()
    assert (await actor.identity())[0]
    for _ in range(100):
        assert await actor.call("sleep", 1.0) == "slept"
    assert not actor._watching.done()  # type: ignore[union-attr]
    assert 100.0 + ORPHAN_S <= await orphaned(actor) <= 100.0 + 2 * ORPHAN_S


@pytest.mark.parametrize(("takes", "ends"), [(HELLO_S - 1.0, HELLO_S - 1.0 + ORPHAN_S), (1e6, HELLO_S)])
async def test_a_long_call_makes_no_orphan_but_one_without_an_end_does(make: Make, takes: float, ends: float) -> None:
    actor = make()
    await actor.identity()
    calls = asyncio.create_task(actor.call("sleep", takes))
    assert ends <= await orphaned(actor) <= ends + ORPHAN_S + 3 * GRACE_S
    calls.cancel()


async def test_an_actor_whose_machine_stood_still_is_no_orphan_if_it_is_called_then(make: Make) -> None:
    actor = make()
    await actor.identity()
    await asyncio.sleep(1.0)
    asyncio.get_running_loop()._clock.now += 2 * ORPHAN_S  # type: ignore[attr-defined]
    await asyncio.sleep(0.5)
    await actor.call("sleep", 0.0)
    await asyncio.sleep(10.0)
    assert not actor._watching.done()  # type: ignore[union-attr]
    actor._watching.cancel()  # type: ignore[union-attr]
