"""Who gets which job: the least loaded node gets the oldest, and a job lies in one place."""

from __future__ import annotations

import random
from concurrent.futures import Future
from typing import Any

import pytest
from fake_nodes import FakeNode

from overlap.cluster.desk import Desk, NodeWork, Router
from overlap.cluster.nodes import Facts
from sandbox.core import Case, Problem, Program

PROBLEM = Problem("p", "stdio", (Case("", "1"),))


def job(number: int, turn: int = 0) -> NodeWork:
    return NodeWork(number, turn, PROBLEM, "p", 1, Program(""), 0.0, Future())  # type: ignore[arg-type]


def join(made: Router, name: str, workers: int) -> Desk:
    """A node that holds one job for each worker as long as none has ended."""
    desk = Desk(FakeNode(name, workers, lambda job: 1.0), Facts(workers, workers, "A"))
    made.join(desk)
    return desk


def router(*workers: int, jobs: int = 0) -> tuple[Router, list[Desk], list[NodeWork]]:
    made, added = Router(), [job(number) for number in range(jobs)]
    desks = [join(made, f"n{number}", count) for number, count in enumerate(workers)]
    for work in added:
        made.add(work)
    made.assign()
    return made, desks, added


def held(made: Router) -> dict[str, int]:
    return {name: len(desk.held) for name, desk in made.desks.items()}


@pytest.mark.parametrize(("jobs", "expected"), [(4, {"n0": 1, "n1": 3}), (9, {"n0": 2, "n1": 6})])
def test_nodes_are_filled_in_proportion_to_their_places_and_no_further(jobs: int, expected: dict[str, int]) -> None:
    made, *_ = router(2, 6, jobs=jobs)
    assert held(made) == expected


def test_nodes_give_back_what_has_not_begun_there_for_those_that_idle_and_only_where_nothing_waits() -> None:
    made, (busy,), _ = router(4, jobs=4)
    busy.facts = Facts(1, 1, "A")
    idle = [join(made, f"idle {number}", 1) for number in range(2)]
    made.balance()
    assert (busy.spare, *(desk.spare for desk in idle)) == (2, 0, 0)  # of the three ahead of its one worker
    busy.spare = 0
    made.add(job(9))
    made.balance()
    assert busy.spare == 0


@pytest.mark.parametrize("seed", range(10))
def test_whatever_happens_every_job_is_in_one_place_the_oldest_go_first_and_no_node_with_room_idles_while_one_waits(
    seed: int,
) -> None:
    rng, made = random.Random(seed), Router()
    live: dict[int, NodeWork] = {}
    for step in range(2000):
        play(made, step, rng, live)
        waited = [work for work in live.values() if work.desk is None]
        made.assign()
        assert sorted(work.number for work in made.everything()) == sorted(live)
        waiting = [(work.turn, work.number) for work in live.values() if work.desk is None]
        assert sum(held(made).values()) + len(waiting) == len(live)
        assert not (waiting and any(desk.is_open for desk in made.desks.values()))
        given = {(work.turn, work.number): work.desk for work in waited if work.desk}
        assert max(given, default=(0, 0)) <= min(waiting, default=(9, 0))
        assert not any(desk.node.drains for desk in given.values())


def play(made: Router, step: int, rng: random.Random, live: dict[int, NodeWork]) -> Any:
    what = rng.choice(("join", "lose", "add", "add", "add", "withdraw", "answer", "answer", "fail", "resize", "drain"))
    if what == "join":
        return join(made, f"n{step}", rng.randint(1, 5))
    if what == "add":
        live[step] = job(step, rng.randint(0, 3))
        return made.add(live[step])
    if what in ("lose", "resize", "drain") and made.desks:
        desk = made.desks[rng.choice(sorted(made.desks))]
        desk.node.drains |= what == "drain"
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
        others = {name for name, desk in made.desks.items() if not desk.node.drains} - work.avoids
        assert (work.desk.node.name in others) if work.desk else not others
    else:
        del live[work.number]
    made.join(desk)
