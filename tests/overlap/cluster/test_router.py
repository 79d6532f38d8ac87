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


def answer(made: Router, work: NodeWork, *, fails: bool = False) -> None:
    """Its node has answered it, and has room for another."""
    desk = work.desk
    assert desk is not None
    assert desk.answered(work.number) is work
    if fails:
        work.avoids |= {desk.node.name}
        made.add(work)
    made.join(desk)


def withdraw(made: Router, work: NodeWork) -> None:
    work.done.cancel()
    made.withdraw(work)


def test_nodes_are_filled_in_proportion_to_their_places() -> None:
    made, *_ = router(2, 6, jobs=4)
    assert held(made) == {"n0": 1, "n1": 3}


def test_no_node_gets_more_than_it_has_room_for() -> None:
    made, *_ = router(2, 3, jobs=9)
    assert held(made) == {"n0": 2, "n1": 3}


def test_the_oldest_turn_is_given_first_and_within_it_the_lowest_number() -> None:
    made = Router()
    for number, turn in enumerate((3, 1, 2, 1)):
        made.add(job(number, turn))
    desk = join(made, "n0", 4)
    made.assign()
    assert list(desk.held) == [1, 3, 2, 0]


@pytest.mark.parametrize("name", ["n0", "n1"])  # also one that comes back under its name
def test_a_job_of_a_lost_node_keeps_its_age_and_the_lost_node_knows_nothing_of_it(name: str) -> None:
    made, (lost,), (first, *_) = router(1, jobs=3)
    assert made.lose(lost) == [first]
    desk = join(made, name, 1)
    made.assign()
    assert (first.desk, first.losses) == (desk, 1)
    assert lost.answered(0) is None
    assert made.lose(lost) == []  # whoever has its name since is another


def test_a_withdrawn_job_makes_room_and_is_not_given_again() -> None:
    made, (desk,), (first, waits, last) = router(1, jobs=3)
    for work in (waits, first):
        withdraw(made, work)
    made.assign()
    assert made.everything() == [last] == list(desk.held.values())


def test_a_draining_node_keeps_its_jobs_and_gets_no_other() -> None:
    made, (desk,), (first,) = router(2, jobs=1)
    desk.node.drains = True
    made.add(job(7))
    made.assign()
    assert list(desk.held) == [0]
    answer(made, first)
    made.assign()
    assert not desk.held


def test_a_node_that_may_hold_more_gets_more_at_once() -> None:
    made, (desk,), _ = router(1, jobs=3)
    desk.ended, desk.mean_s = 10, desk.pace_s
    made.join(desk)
    made.assign()
    desk.mean_s = 1000.0
    made.join(desk)
    assert held(made) == {"n0": 3}  # it keeps what it has


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
def test_whatever_happens_every_job_is_in_one_place_and_no_node_with_room_idles_while_one_waits(seed: int) -> None:
    rng, made = random.Random(seed), Router()
    live: dict[int, NodeWork] = {}
    for step in range(2000):
        play(made, step, rng, live)
        made.assign()
        assert sorted(work.number for work in made.everything()) == sorted(live)
        waiting = sum(work.desk is None for work in live.values())
        assert sum(held(made).values()) + waiting == len(live)
        assert not (waiting and any(desk.is_open for desk in made.desks.values()))


def play(made: Router, step: int, rng: random.Random, live: dict[int, NodeWork]) -> Any:
    what = rng.choice(("join", "lose", "add", "add", "add", "withdraw", "answer", "answer", "fail", "resize"))
    if what == "join":
        return join(made, f"n{step}", rng.randint(1, 5))
    if what == "add":
        live[step] = job(step, rng.randint(0, 3))
        return made.add(live[step])
    if what in ("lose", "resize") and made.desks:
        desk = made.desks[rng.choice(sorted(made.desks))]
        desk.ended, desk.mean_s = rng.randint(0, 9), rng.choice((0.1, 9.0))
        return made.join(desk) if what == "resize" else made.lose(desk)
    if what == "withdraw" and live:
        return withdraw(made, live.pop(rng.choice(sorted(live))))
    if what in ("answer", "fail") and (lies := [work for work in live.values() if work.desk]):
        number = rng.choice(lies).number
        return answer(made, live[number] if what == "fail" else live.pop(number), fails=what == "fail")
    return None


def test_a_job_that_failed_on_a_node_goes_to_another_whose_next_answer_makes_no_room_by_that() -> None:
    made, (_, other), (first, second, third, last) = router(1, 1, jobs=4)
    answer(made, first, fails=True)
    made.assign()
    assert (list(other.held), third.desk is None) == ([1, 0], False)
    answer(made, second)
    made.assign()
    assert (first.desk, first.losses, last.desk) == (other, 0, None)


@pytest.mark.parametrize("drains", [False, True])
def test_a_job_that_failed_on_every_node_there_is_waits_with_the_rest_and_goes_to_any(drains: bool) -> None:
    made, (desk, other), (first,) = router(1, 1, jobs=1)
    other.node.drains = drains
    answer(made, first, fails=True)
    if not drains:
        answer(made, first, fails=True)
    made.assign()
    assert first.desk is desk
    withdraw(made, first)
    assert not made.everything()
