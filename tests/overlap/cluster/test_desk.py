"""What is sent to a node and when, how many jobs it holds; and who gets which job: the
least loaded node gets the oldest, and a job lies in one place.
"""

from __future__ import annotations

import asyncio
import random
from concurrent.futures import Future
from typing import Any

import pytest
from fake_nodes import FakeNode

from overlap.cluster import desk as desk_module
from overlap.cluster.desk import PARCEL_BYTES, SLOW, Desk, NodeWork, Router
from overlap.cluster.nodes import BEAT_S, SILENT_S, Facts, NodeLost, NodeParcel, NodeReply, NodeSilent
from overlap.core.clock import now
from sandbox.core.nouns import Case, Program
from sandbox.core.problem import Problem

pytestmark = pytest.mark.virtual

PROBLEM = Problem("p", "stdio", (Case("", "1"),))


class Heard(FakeNode):
    """Keeps the parcels that are more than nothing."""

    def __init__(self) -> None:
        super().__init__("a", 4, lambda job: 0.1)
        self.parcels: list[NodeParcel] = []

    def _accept(self, parcel: NodeParcel) -> None:
        if parcel.jobs:
            self.parcels.append(parcel)
        super()._accept(parcel)


def at(node: FakeNode) -> Desk:
    return Desk(node, Facts(4, 4, "A"))


def job(number: int, problem: str = "p", size: int = 1, source: str = "", turn: int = 0) -> NodeWork:
    program = Program(source or str(number))
    return NodeWork(number, turn, PROBLEM, problem, size, program, 0.0, Future())  # type: ignore[arg-type]


async def serve(desk: Desk) -> None:
    """Send and collect until the node is lost."""
    while True:
        for number, *_ in (await desk.exchange()).answers:
            desk.answered(number)
            desk.took(0.1)
        await desk.rest()


async def work(desk: Desk, seconds: float) -> None:
    working = asyncio.create_task(serve(desk))
    await asyncio.sleep(seconds)
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)


async def test_jobs_of_a_moment_go_in_one_parcel_with_each_problem_once_and_large_ones_in_one_after_the_other() -> None:
    desk = at(node := Heard())
    for number in range(10, 20):
        desk.give(job(number))
    await work(desk, 1.0)
    for number in range(4):
        desk.give(job(number, f"p{number}", PARCEL_BYTES // 2))
    desk.give(job(4, "p0"))
    for number in (5, 6, 7):
        desk.give(job(number, source="x" * (PARCEL_BYTES // 2)))
    await work(desk, 1.0)
    numbers = [[sent.number for sent in parcel.jobs] for parcel in node.parcels]
    assert numbers == [[*range(10, 20)], [0, 1], [2, 3], [4, 5, 6], [7]]
    assert set(node.received.values()) == {1}
    assert not desk.held


async def test_a_node_forgets_the_problems_of_which_no_job_came_for_longest_and_gets_them_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(desk_module, "KEPT", 2)
    desk = at(node := Heard())
    for number, problem in enumerate("abacabd"):
        desk.give(job(number, problem))
        await work(desk, 0.01 if number == 0 else 1.0)
    assert sorted(node.judged) == list(range(7))
    assert (node.received, node._problems) == ({"a": 1, "b": 2, "c": 1, "d": 1}, {"b", "d"})
    for number in range(7, 11):
        desk.give(job(number, f"{number}"))  # in one parcel more than a node keeps
    await work(desk, 1.0)
    assert sorted(node.judged) == list(range(11))
    assert len(node._problems) == 2


class Slow(Heard):
    """A parcel with a problem takes ``seconds`` to it."""

    seconds = 30.0

    async def exchange(self, parcel: NodeParcel) -> NodeReply:
        if parcel.problems:
            await asyncio.sleep(self.seconds)
        return await super().exchange(parcel)


async def test_a_heavy_parcel_may_take_long_and_not_for_ever() -> None:
    desk, size = at(node := Slow()), 4 * PARCEL_BYTES
    desk.give(job(1, "p", size))
    working = asyncio.create_task(serve(desk))
    await asyncio.sleep(31.0)
    assert node.judged == [1]
    node.seconds, began = 1000.0, now()
    desk.give(job(2, "q", size))
    await asyncio.wait([working])
    assert now() - began == pytest.approx(SILENT_S + BEAT_S + size / SLOW, abs=3.0)
    assert isinstance(working.exception(), NodeSilent)


async def test_a_node_that_has_lost_jobs_that_it_was_given_is_lost() -> None:
    desk = at(node := Heard())
    desk.give(job(1))
    serving = asyncio.create_task(serve(desk))
    await asyncio.sleep(0.05)
    node._stop()
    with pytest.raises(NodeLost, match="it has lost jobs"):
        await serving


def join(made: Router, name: str, workers: int) -> Desk:
    """A node that holds one job for each worker as long as none has ended."""
    desk = Desk(FakeNode(name, workers, lambda job: 1.0), Facts(workers, workers, "A"))
    made.join(desk)
    return desk


def held(made: Router) -> dict[str, int]:
    return {name: len(desk.held) for name, desk in made.desks.items()}


@pytest.mark.parametrize("seed", range(10))
def test_whatever_happens_every_job_is_in_one_place_the_oldest_go_first_and_no_node_with_room_idles_while_one_waits(
    seed: int,
) -> None:
    rng, made = random.Random(seed), Router()
    live: dict[int, NodeWork] = {}
    for step in range(1000):
        play(made, step, rng, live)
        waited = [work for work in live.values() if work.desk is None]
        made.assign()
        assert sorted(work.number for work in made.everything()) == sorted(live)
        waiting = [(work.turn, work.number) for work in live.values() if work.desk is None]
        assert sum(held(made).values()) + len(waiting) == len(live)
        assert not (waiting and any(desk.is_open for desk in made.desks.values()))
        given = {(work.turn, work.number): work.desk for work in waited if work.desk}
        assert max(given, default=(0, 0)) <= min(waiting, default=(9, 0))


def play(made: Router, step: int, rng: random.Random, live: dict[int, NodeWork]) -> Any:
    what = rng.choice(("join", "lose", "add", "add", "add", "withdraw", "answer", "answer", "fail", "resize"))
    if what == "join":
        return join(made, f"n{step}", rng.randint(1, 5))
    if what == "add":
        live[step] = job(step, turn=rng.randint(0, 3))
        return made.add(live[step])
    if what in ("lose", "resize") and made.desks:
        desk = made.desks[rng.choice(sorted(made.desks))]
        desk.ended, desk.mean_s = rng.randint(0, 9), rng.choice((0.1, 9.0))
        return made.lose(desk) if what == "lose" else made.join(desk)
    if what == "withdraw" and live:
        work = live.pop(rng.choice(sorted(live)))
        work.done.cancel()
        return made.withdraw(work)
    if what in ("answer", "fail") and (lies := [work for work in live.values() if work.desk]):
        return answer(made, rng.choice(lies), live, fails=what == "fail")
    return None


def answer(made: Router, work: NodeWork, live: dict[int, NodeWork], *, fails: bool) -> None:
    """Its node has answered it, and has room for another; one that failed goes to a node that it has not failed on, as
    long as there is one.
    """
    desk = work.desk
    assert desk is not None
    assert desk.answered(work.number) is work
    if fails:
        work.avoids |= {desk.node.name}
        made.add(work)
        others = made.desks.keys() - work.avoids
        assert (work.desk.node.name in others) if work.desk else not others
    else:
        del live[work.number]
    made.join(desk)
