"""What an agent makes of jobs, whatever its sandbox does."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from overlap.clock import VirtualLoop, now
from overlap.cluster.agent import Agent
from overlap.cluster.nodes import BEAT_S, GRACE_S, HELLO_S, ORPHAN_S, JobParcel, NodeJob
from sandbox.core import Case, Judgement, Problem, Program, Verdict
from sandbox.errors import ProblemLost, ToolchainMissing, from_wire

pytestmark = pytest.mark.virtual
PROBLEMS = {"p": Problem("p", "stdio", (Case("", "1"),))}


class FakePool:
    """Judges after ``seconds``; a program is what it raises."""

    def __init__(self, seconds: float = 0.1) -> None:
        self.seconds, self.cancelled, self.opened = seconds, 0, 0
        self.judged, self.lingers = 0, 0.0

    async def __aenter__(self) -> FakePool:
        self.opened += 1
        return self

    async def __aexit__(self, *exc_info: Any) -> None:
        self.opened -= 1

    async def judge(self, problem: Problem, program: Program, *, turn: int = 0) -> Judgement:
        try:
            await asyncio.sleep(self.seconds)
        except asyncio.CancelledError:
            self.cancelled += 1
            await asyncio.sleep(self.lingers)
            raise
        self.judged += 1
        if program.source == "toolchain":
            raise ToolchainMissing("no g++")
        if program.source == "bug":
            raise KeyError("bug")
        return Judgement(problem.id, Verdict.AC, (), 1, 1, False, "A", "python", "", "", 0.0, self.seconds)

    def pids(self) -> tuple[int, ...]:
        return ()


def job(number: int, source: str = "", attempt: int = 1, problem: str = "p") -> NodeJob:
    return NodeJob(number, attempt, 0, problem, Program(source))


@pytest.fixture
def pool() -> FakePool:
    return FakePool()


@pytest.fixture
def agent(pool: FakePool) -> Agent:
    return Agent(lambda: pool, 3)


async def test_an_agent_says_what_its_node_is_by_a_program_that_was_judged(agent: Agent, pool: FakePool) -> None:
    facts = await agent.hello()
    assert (facts.workers, facts.tier) == (3, "A")
    await agent.close()
    assert pool.opened == 0


async def test_a_job_is_answered_with_its_attempt(agent: Agent) -> None:
    await agent.send(JobParcel([job(5, attempt=3)], PROBLEMS, order=1))
    (answer,) = (await agent.collect()).answers
    assert answer[:2] == (5, 3)
    assert answer.judgement is not None
    assert answer.judgement.verdict is Verdict.AC
    assert not (await agent.collect()).answers


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        (job(1, "toolchain"), ToolchainMissing, "no g"),
        (job(1, "bug"), Exception, "KeyError"),
        (job(1, problem="q"), ProblemLost, "did not reach"),
    ],
)
async def test_a_job_that_fails_is_answered_also_where_that_is_a_bug(
    given: NodeJob, error: type, text: str, agent: Agent
) -> None:
    await agent.send(JobParcel([given], PROBLEMS, order=1))
    (answer,) = (await agent.collect()).answers
    raised = from_wire(dict(answer.fault or {}))
    assert isinstance(raised, error)
    assert text in str(raised)


async def test_an_agent_with_nothing_to_say_says_so(agent: Agent) -> None:
    async with asyncio.timeout(BEAT_S + 0.1):
        assert not (await agent.collect()).answers


async def test_a_withdrawn_job_is_cancelled_and_not_answered(agent: Agent, pool: FakePool) -> None:
    await agent.send(JobParcel([job(1), job(2)], PROBLEMS, order=1))
    await asyncio.sleep(0.05)
    await agent.send(JobParcel(withdrawn=[1, 77], order=2))
    await asyncio.sleep(1.0)
    assert [answer.number for answer in (await agent.collect()).answers] == [2]
    assert pool.cancelled == 1


async def test_after_a_reset_nothing_is_left_of_what_was_sent_before(agent: Agent, pool: FakePool) -> None:
    await agent.send(JobParcel([job(1)], PROBLEMS, order=1))
    await asyncio.sleep(0.2)
    await agent.send(JobParcel([job(2)], order=2))
    await asyncio.sleep(0.05)
    await agent.reset(1)
    assert not (await agent.collect(JobParcel(epoch=1))).answers
    assert pool.cancelled == 1
    assert not agent._problems


async def test_who_asked_before_a_reset_takes_no_answer_of_after_it(agent: Agent) -> None:
    old = asyncio.create_task(agent.collect())
    await asyncio.sleep(0.05)
    await agent.reset(1)
    await agent.send(JobParcel([job(1, attempt=2)], PROBLEMS, epoch=1, order=1))
    assert [answer.attempt for answer in (await agent.collect(JobParcel(epoch=1))).answers] == [2]
    assert not (await old).answers


async def test_a_forgotten_problem_is_gone(agent: Agent) -> None:
    await agent.send(JobParcel([job(1)], PROBLEMS, order=1))
    await agent.send(JobParcel(forgotten=["p", "never there"], order=2))
    await asyncio.sleep(0.2)
    (answer,) = (await agent.collect()).answers
    assert answer.judgement is not None  # it was there when it was needed
    assert not agent._problems


async def test_an_agent_is_an_orphan_when_nobody_has_called_it_for_long(agent: Agent) -> None:
    await agent.hello()
    alone = asyncio.create_task(agent.orphaned())
    for _ in range(100):
        await agent.collect()
    assert now() > 3 * ORPHAN_S
    assert not alone.done()
    await asyncio.wait([alone], timeout=ORPHAN_S + 5.0)
    assert alone.done()


@pytest.mark.parametrize(("seconds", "alone_s"), [(1e6, HELLO_S), (1.0, 1.0)])
async def test_one_whose_driver_ends_during_or_after_the_first_call_is_an_orphan(
    agent: Agent, pool: FakePool, seconds: float, alone_s: float
) -> None:
    pool.seconds = seconds
    opens = asyncio.create_task(agent.hello())
    await asyncio.sleep(0)
    await agent.orphaned()
    assert alone_s + ORPHAN_S <= now() <= alone_s + ORPHAN_S + 3 * GRACE_S
    opens.cancel()


async def test_an_agent_whose_machine_stood_still_is_no_orphan_if_it_is_called_then(agent: Agent) -> None:
    await agent.hello()
    alone = asyncio.create_task(agent.orphaned())
    await asyncio.sleep(1.0)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    loop._clock.now += 2 * ORPHAN_S
    await asyncio.sleep(0.5)
    await agent.collect()
    await asyncio.sleep(10.0)
    assert not alone.done()
    alone.cancel()


async def test_parcels_that_overtake_each_other_are_opened_in_the_order_in_which_they_were_made(
    agent: Agent, pool: FakePool
) -> None:
    await agent.send(JobParcel([job(2)], order=2))
    await agent.send(JobParcel(withdrawn=[1], forgotten=["p"], order=3))
    await agent.send(JobParcel([job(1)], PROBLEMS, order=1))
    await asyncio.sleep(0.2)
    reply = await agent.collect()
    assert [(answer.number, answer.fault) for answer in reply.answers] == [(2, None)]
    assert (reply.has, reply.opened) == (0, 3)
    assert pool.judged == 1


async def test_a_parcel_that_comes_twice_is_opened_once(agent: Agent, pool: FakePool) -> None:
    for _ in range(2):
        await agent.send(JobParcel([job(1)], PROBLEMS, order=1))
    assert (await agent.collect()).has == 0
    assert pool.judged == 1


async def test_what_was_sent_or_asked_before_a_reset_and_comes_after_it_does_nothing_and_takes_nothing_away(
    agent: Agent, pool: FakePool
) -> None:
    await agent.reset(2)
    await agent.send(JobParcel([job(1, attempt=2)], PROBLEMS, epoch=2, order=1))
    await agent.send(JobParcel([job(2)], epoch=1, order=1))
    await agent.send(JobParcel(withdrawn=[1], forgotten=["p"], epoch=1, order=2))
    await agent.reset(1)
    await agent.reset(2)
    await asyncio.sleep(0.2)
    assert not (await agent.collect(JobParcel(epoch=1))).answers
    (answer,) = (await agent.collect(JobParcel(epoch=2))).answers
    assert answer[:2] == (1, 2)
    assert list(agent._problems) == ["p"]
    assert pool.judged == 1


async def test_jobs_that_come_while_those_of_before_a_reset_are_taken_back_are_kept(
    agent: Agent, pool: FakePool
) -> None:
    pool.lingers = 1.0
    await agent.send(JobParcel([job(1)], PROBLEMS, order=1))
    await asyncio.sleep(0.05)
    resets = asyncio.create_task(agent.reset(1))
    await asyncio.sleep(0.01)
    await agent.reset(1)  # made again, for the first had no answer yet
    await agent.send(JobParcel([job(2)], PROBLEMS, epoch=1, order=1))
    await resets
    (answer,) = (await agent.collect(JobParcel(epoch=1))).answers
    assert (answer.number, answer.fault) == (2, None)
