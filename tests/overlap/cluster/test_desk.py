"""What is sent to a node and when, and what of its silence, its faults and a driver that stood still."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from fake_nodes import FakeNode

from overlap.clock import VirtualLoop, now
from overlap.cluster.desk import (
    CALL_S,
    FAULTS_MAX,
    GIVEN_UP_S,
    LIGHT_BYTES,
    PACE_LONG_S,
    PACE_S,
    PARCEL_BYTES,
    SHARE,
    SLOW,
    Desk,
    bounded,
    pace_s,
)
from overlap.cluster.nodes import SILENT_S, Facts, JobParcel, NodeAnswer, NodeJob, NodeLost, NodeSilent
from sandbox.core import Case, Problem, Program

pytestmark = pytest.mark.virtual

PROBLEM = Problem("p", "stdio", (Case("", "1"),))


class Heard(FakeNode):
    """Keeps the parcels that are more than nothing."""

    def __init__(self) -> None:
        super().__init__("a", 4, lambda job: 0.1)
        self.parcels: list[JobParcel] = []

    def _accept(self, parcel: JobParcel) -> None:
        self.parcels.append(parcel)
        super()._accept(parcel)


def job(number: int, problem: str = "p") -> NodeJob:
    return NodeJob(number, 1, 0, problem, Program(str(number)))


async def work(desk: Desk, seconds: float) -> None:
    working = asyncio.create_task(desk.work())
    await asyncio.sleep(seconds)
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)


def ignore(desk: Desk, answers: Sequence[NodeAnswer]) -> None:
    pass


def end(desk: Desk, answers: Sequence[NodeAnswer]) -> None:
    for _ in answers:
        desk.done("p", 0.1)


@pytest.mark.parametrize("nodes", [1, 3, 50, 1000])
def test_the_calls_to_all_nodes_cost_the_driver_a_share_of_a_core_at_most(nodes: int) -> None:
    assert 2 * nodes * CALL_S / pace_s(nodes) <= SHARE
    assert pace_s(nodes) >= PACE_S


@pytest.mark.parametrize(("mean_s", "pace"), [(0.0, PACE_S), (1.0, PACE_S), (20.0, 0.2), (600.0, PACE_LONG_S)])
def test_answers_of_long_jobs_wait_for_each_other_a_little(mean_s: float, pace: float) -> None:
    assert pace_s(3, mean_s) == pytest.approx(pace)
    assert pace_s(3000, mean_s) == pace_s(3000)


async def test_jobs_of_a_moment_go_in_one_parcel_with_their_problem_once() -> None:
    desk = Desk(node := Heard(), ignore)
    for number in range(10):
        desk.give(job(number), PROBLEM)
    await work(desk, 1.0)
    (parcel,) = node.parcels
    assert [sent.number for sent in parcel.jobs] == list(range(10))
    assert list(parcel.problems) == ["p"]


async def test_a_job_that_was_withdrawn_before_it_was_sent_is_not_sent_and_its_problem_is_there_for_the_next() -> None:
    desk = Desk(node := Heard(), ignore)
    desk.give(job(1, "q"), PROBLEM)
    desk.withdraw(1, "q")
    await work(desk, 1.0)
    desk.give(job(2, "q"), PROBLEM)
    await work(desk, 1.0)
    assert [sent.number for parcel in node.parcels for sent in parcel.jobs] == [2]
    assert node.judged == [2]


async def test_large_problems_are_sent_one_parcel_after_the_other() -> None:
    desk = Desk(node := Heard(), ignore)
    for number in range(4):
        desk.give(job(number, f"p{number}"), PROBLEM, PARCEL_BYTES // 2)
    desk.give(job(4, "p0"), PROBLEM, PARCEL_BYTES // 2)
    await work(desk, 1.0)
    assert [[sent.number for sent in parcel.jobs] for parcel in node.parcels] == [[0, 1], [2, 3], [4]]
    assert set(node.received.values()) == {1}


class Slow(Heard):
    """A parcel with a problem takes ``seconds`` to it."""

    seconds = 60.0

    async def send(self, parcel: JobParcel) -> None:
        if parcel.problems:
            await asyncio.sleep(self.seconds)
        await super().send(parcel)


async def test_a_heavy_parcel_may_take_long_as_long_as_the_node_speaks_and_not_for_ever() -> None:
    desk = Desk(node := Slow(), end)
    desk.give(job(1), PROBLEM, PARCEL_BYTES)
    working = asyncio.create_task(desk.work())
    await asyncio.sleep(61.0)
    assert [sent.number for parcel in node.parcels for sent in parcel.jobs] == [1]
    await asyncio.sleep(60.0)
    assert not working.done()
    node.seconds, began = 1000.0, now()
    desk.give(job(2, "q"), PROBLEM, PARCEL_BYTES)
    await asyncio.wait([working])
    assert now() - began == pytest.approx(SILENT_S + PARCEL_BYTES / SLOW, abs=3.0)


async def test_a_heavy_parcel_to_a_node_that_is_silent_does_not_make_it_wait_longer() -> None:
    desk = Desk(node := Slow(), ignore)
    node.freeze()
    desk.give(job(1), PROBLEM, PARCEL_BYTES)
    with pytest.raises(BaseExceptionGroup):
        await desk.work()
    assert now() < SILENT_S + 2.0


async def test_programs_count_in_what_a_parcel_weighs() -> None:
    desk = Desk(Heard(), ignore)
    for number in range(3):
        desk.give(job(number)._replace(program=Program("x" * (LIGHT_BYTES // 2))), PROBLEM)
    parcel, size = desk._parcel(LIGHT_BYTES)
    assert ([sent.number for sent in parcel.jobs], size) == ([0, 1], LIGHT_BYTES)


class Forgetful(Heard):
    """It loses what it judges, and says nothing of that."""

    async def send(self, parcel: JobParcel) -> None:
        await super().send(parcel)
        self._running.clear()
        self._ends.clear()


async def test_a_node_that_has_lost_jobs_that_it_was_given_is_held_for_silent() -> None:
    desk = Desk(Forgetful(), ignore)
    working = asyncio.create_task(desk.work())
    await asyncio.sleep(1.0)
    desk.give(job(1), PROBLEM)
    with pytest.raises(BaseExceptionGroup) as raised:
        await working
    assert isinstance(raised.value.exceptions[0], NodeSilent)
    assert now() < 10.0
    desk = Desk(Heard(), end)
    for number in range(1, 20):
        desk.give(job(number), PROBLEM)
    desk.withdraw(7, "p")
    await work(desk, 30.0)
    assert desk._out == 0


async def test_a_node_that_answers_nothing_is_silent_after_some_seconds() -> None:
    node = Heard()
    node.freeze()
    with pytest.raises(BaseExceptionGroup) as raised:
        await Desk(node, ignore).work()
    assert isinstance(raised.value.exceptions[0], NodeSilent)
    assert SILENT_S <= now() < SILENT_S + 2.0


async def test_a_driver_that_stood_still_finds_the_answers_that_came_meanwhile() -> None:
    async def answer() -> str:
        await asyncio.sleep(2.0)
        return "here"

    call = asyncio.create_task(bounded(answer(), SILENT_S))
    await asyncio.sleep(1.0)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    loop._clock.now += 10.0  # no code of ours runs for so long
    assert await call == "here"


async def test_a_node_that_stays_silent_is_given_up() -> None:
    node = Heard()
    node.freeze()
    with pytest.raises(NodeLost, match="silent for 30 s"):
        await Desk(node, ignore).again()
    assert now() < GIVEN_UP_S + 2.0


async def test_a_node_that_speaks_again_has_nothing_left_and_gets_its_problems_anew() -> None:
    desk = Desk(node := Heard(), ignore)
    desk.give(job(1), PROBLEM)
    await work(desk, 0.05)
    await desk.again()
    desk.give(job(2), PROBLEM)
    await work(desk, 1.0)
    assert node.judged == [2]
    assert node.received["p"] == 2


async def test_a_node_that_fails_every_job_is_lost_and_one_that_fails_some_is_not() -> None:
    def fail(desk: Desk, answers: Sequence[NodeAnswer]) -> None:
        for number, *_ in answers:
            if number % FAULTS_MAX or number > 9:
                desk.failed("p", "no compiler", node=True)
            else:
                desk.done("p", 0.1)

    desk = Desk(Heard(), fail)
    for number in range(1, 20):
        desk.give(job(number), PROBLEM)
    with pytest.raises(BaseExceptionGroup) as raised:
        await desk.work()
    (error,) = raised.value.exceptions
    assert isinstance(error, NodeLost)
    assert "no compiler" in str(error)


def test_the_mean_of_a_job_is_of_those_that_ran() -> None:
    desk = Desk(Heard(), ignore)
    desk.facts = Facts(4, 4, "A")
    for seconds in (1.0, 0.0, 2.0):
        desk.give(job(1), PROBLEM)
        desk.done("p", seconds)
    assert (desk.mean_s, desk.ended) == (1.5, 2)


def test_the_mean_of_a_job_is_of_the_last_ones() -> None:
    desk = Desk(Heard(), ignore)
    desk.facts = Facts(4, 4, "A")
    for seconds in (*[100.0] * 50, *[1.0] * 200):
        desk.give(job(1), PROBLEM)
        desk.done("p", seconds)
    assert desk.mean_s == pytest.approx(1.0, rel=0.01)
