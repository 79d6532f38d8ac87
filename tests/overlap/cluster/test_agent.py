"""What an agent makes of jobs, whatever its sandbox does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from overlap.clock import VirtualLoop, now, run_virtual
from overlap.cluster.agent import Agent
from overlap.cluster.nodes import BEAT_S, ORPHAN_S, JobParcel, NodeJob, code_digest
from sandbox.core import Case, Judgement, Problem, Program, Verdict
from sandbox.errors import ProblemLost, ToolchainMissing, from_wire

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


def played(main: Callable[[Agent, FakePool], Any], seconds: float = 0.1) -> None:
    async def play() -> None:
        pool = FakePool(seconds)
        await main(Agent(lambda: pool, 3), pool)

    run_virtual(play())


def test_an_agent_says_what_its_node_is_by_a_program_that_was_judged() -> None:
    async def main(agent: Agent, pool: FakePool) -> None:
        facts = await agent.hello()
        assert (facts.workers, facts.tier, facts.version) == (3, "A", code_digest())
        await agent.close()
        assert pool.opened == 0

    played(main)


def test_a_job_is_answered_with_its_attempt() -> None:
    async def main(agent: Agent, pool: FakePool) -> None:
        await agent.send(JobParcel([job(5, attempt=3)], PROBLEMS, order=1))
        (answer,) = (await agent.collect()).answers
        assert answer[:2] == (5, 3)
        assert answer.judgement is not None
        assert answer.judgement.verdict is Verdict.AC
        assert not (await agent.collect()).answers

    played(main)


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        (job(1, "toolchain"), ToolchainMissing, "no g"),
        (job(1, "bug"), Exception, "KeyError"),
        (job(1, problem="q"), ProblemLost, "did not reach"),
    ],
)
def test_a_job_that_fails_is_answered_also_where_that_is_a_bug(given: NodeJob, error: type, text: str) -> None:
    async def main(agent: Agent, pool: FakePool) -> None:
        await agent.send(JobParcel([given], PROBLEMS, order=1))
        (answer,) = (await agent.collect()).answers
        raised = from_wire(dict(answer.fault or {}))
        assert isinstance(raised, error)
        assert text in str(raised)

    played(main)


def test_an_agent_with_nothing_to_say_says_so() -> None:
    async def main(agent: Agent, pool: FakePool) -> None:
        async with asyncio.timeout(BEAT_S + 0.1):
            assert not (await agent.collect()).answers

    played(main)


def test_a_withdrawn_job_is_cancelled_and_not_answered() -> None:
    async def main(agent: Agent, pool: FakePool) -> None:
        await agent.send(JobParcel([job(1), job(2)], PROBLEMS, order=1))
        await asyncio.sleep(0.05)
        await agent.send(JobParcel(withdrawn=[1, 77], order=2))
        await asyncio.sleep(1.0)
        assert [answer.number for answer in (await agent.collect()).answers] == [2]
        assert pool.cancelled == 1

    played(main)


def test_after_a_reset_nothing_is_left_of_what_was_sent_before() -> None:
    async def main(agent: Agent, pool: FakePool) -> None:
        await agent.send(JobParcel([job(1)], PROBLEMS, order=1))
        await asyncio.sleep(0.2)
        await agent.send(JobParcel([job(2)], order=2))
        await asyncio.sleep(0.05)
        await agent.reset(1)
        assert not (await agent.collect(JobParcel(epoch=1))).answers
        assert pool.cancelled == 1
        assert not agent._problems

    played(main)


def test_who_asked_before_a_reset_takes_no_answer_of_after_it() -> None:
    async def main(agent: Agent, pool: FakePool) -> None:
        old = asyncio.create_task(agent.collect())
        await asyncio.sleep(0.05)
        await agent.reset(1)
        await agent.send(JobParcel([job(1, attempt=2)], PROBLEMS, epoch=1, order=1))
        assert [answer.attempt for answer in (await agent.collect(JobParcel(epoch=1))).answers] == [2]
        assert not (await old).answers

    played(main)


def test_a_forgotten_problem_is_gone() -> None:
    async def main(agent: Agent, pool: FakePool) -> None:
        await agent.send(JobParcel([job(1)], PROBLEMS, order=1))
        await agent.send(JobParcel(forgotten=["p", "never there"], order=2))
        await asyncio.sleep(0.2)
        (answer,) = (await agent.collect()).answers
        assert answer.judgement is not None  # it was there when it was needed
        assert not agent._problems

    played(main)


def test_an_agent_is_an_orphan_when_nobody_has_called_it_for_long() -> None:
    async def main(agent: Agent, pool: FakePool) -> None:
        await agent.hello()
        alone = asyncio.create_task(agent.orphaned())
        for _ in range(100):
            await agent.collect()
        assert now() > 3 * ORPHAN_S
        assert not alone.done()
        await asyncio.wait([alone], timeout=ORPHAN_S + 5.0)
        assert alone.done()

    played(main)


def test_an_agent_whose_machine_stood_still_is_no_orphan_if_it_is_called_then() -> None:
    async def main(agent: Agent, pool: FakePool) -> None:
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

    played(main)


def test_parcels_that_overtake_each_other_are_opened_in_the_order_in_which_they_were_made() -> None:
    async def main(agent: Agent, pool: FakePool) -> None:
        await agent.send(JobParcel([job(2)], order=2))
        await agent.send(JobParcel(withdrawn=[1], forgotten=["p"], order=3))
        await agent.send(JobParcel([job(1)], PROBLEMS, order=1))
        await asyncio.sleep(0.2)
        reply = await agent.collect()
        assert [(answer.number, answer.fault) for answer in reply.answers] == [(2, None)]
        assert (reply.has, reply.opened) == (0, 3)
        assert pool.judged == 1

    played(main)


def test_a_parcel_that_comes_twice_is_opened_once() -> None:
    async def main(agent: Agent, pool: FakePool) -> None:
        for _ in range(2):
            await agent.send(JobParcel([job(1)], PROBLEMS, order=1))
        assert (await agent.collect()).has == 0
        assert pool.judged == 1

    played(main)


def test_what_was_sent_or_asked_before_a_reset_and_comes_after_it_does_nothing_and_takes_nothing_away() -> None:
    async def main(agent: Agent, pool: FakePool) -> None:
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

    played(main)


def test_jobs_that_come_while_those_of_before_a_reset_are_taken_back_are_kept() -> None:
    async def main(agent: Agent, pool: FakePool) -> None:
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

    played(main)
