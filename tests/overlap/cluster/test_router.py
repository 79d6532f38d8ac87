"""Who gets which job: the least loaded node gets the oldest, and only the answer to the last attempt counts."""

from __future__ import annotations

import random
from typing import Any

import pytest

from overlap.cluster.router import DEPTH_MAX, RoutedJob, Router, depth


def router(*places: int, jobs: int = 0) -> tuple[Router, list[RoutedJob]]:
    made, added = Router(), [RoutedJob(number, 0, None) for number in range(jobs)]
    for number, count in enumerate(places):
        made.join(f"n{number}", count)
    for job in added:
        made.add(job)
    return made, added


def test_nodes_are_filled_in_proportion_to_their_places() -> None:
    made, _ = router(2, 6, jobs=4)
    assert len(made.assign()) == 4
    assert made.nodes == {"n0": 1, "n1": 3}


def test_no_node_gets_more_than_it_has_room_for() -> None:
    made, _ = router(2, 3, jobs=9)
    assert len(made.assign()) == 5
    assert (made.waiting, made.nodes) == (4, {"n0": 2, "n1": 3})
    assert made.assign() == []


def test_the_oldest_turn_is_given_first_and_within_it_the_lowest_number() -> None:
    made = Router()
    for number, turn in enumerate((3, 1, 2, 1)):
        made.add(RoutedJob(number, turn, None))
    made.join("n0", 4)
    assert [job.number for _, job in made.assign()] == [1, 3, 2, 0]


@pytest.mark.parametrize("name", ["n0", "n1"])  # also one that comes back under its name
def test_a_job_of_a_lost_node_keeps_its_age_and_the_lost_nodes_answer_counts_for_nothing(name: str) -> None:
    made, (job, *_) = router(1, jobs=3)
    made.assign()
    assert made.lose("n0") == [job]
    made.join(name, 1)
    assert made.assign() == [(name, job)]
    assert made.answered("n0", 0, 1) is None
    assert made.answered(name, 0, 1) is None  # it was its second attempt
    assert made.answered(name, 0, 2) is job
    assert made.answered(name, 0, 2) is None
    assert job.ended


def test_a_job_that_was_answered_may_wait_again_for_another_attempt() -> None:
    made, (job,) = router(1, jobs=1)
    made.assign()
    made.answered("n0", 0, 1)
    made.add(job)
    assert not job.ended
    assert made.assign() == [("n0", job)]
    assert made.answered("n0", 0, 1) is None
    assert made.answered("n0", 0, 2) is job


def test_a_withdrawn_job_makes_room_and_is_not_given_again() -> None:
    made, (held, waits, last) = router(1, jobs=3)
    made.assign()
    assert made.withdraw(waits) == ""
    assert made.withdraw(held) == "n0"
    assert [job for _, job in made.assign()] == [last]
    assert made.waiting == 0
    assert made.everything() == [last]


def test_a_draining_node_keeps_its_jobs_and_gets_no_other() -> None:
    made, jobs = router(2, jobs=1)
    made.assign()
    made.drain("n0")
    made.add(RoutedJob(7, 0, None))
    assert made.assign() == []
    assert made.answered("n0", 0, 1) is jobs[0]
    assert made.waiting == 1


def test_a_node_that_may_hold_more_gets_more_at_once() -> None:
    made, _ = router(1, jobs=3)
    made.assign()
    made.resize("n0", 3)
    assert len(made.assign()) == 2
    made.resize("n0", 1)
    assert made.nodes == {"n0": 3}  # it keeps what it has


def test_a_node_that_is_not_there_has_nothing_to_lose() -> None:
    assert router()[0].lose("n0") == []


@pytest.mark.parametrize("seed", range(10))
def test_whatever_happens_every_job_is_in_one_place_and_no_node_with_room_idles_while_one_waits(seed: int) -> None:
    rng, made = random.Random(seed), Router()
    there: set[str] = set()
    live: dict[int, RoutedJob] = {}
    for step in range(2000):
        what = rng.choice(("join", "lose", "add", "add", "add", "withdraw", "answer", "answer", "resize"))
        play(made, what, step, rng, there, live)
        made.assign()
        assert sorted(job.number for job in made.everything()) == sorted(live)
        assert sum(made.nodes.values()) + made.waiting == len(live)
        assert sum(not job.node for job in live.values()) == made.waiting
        assert not made.waiting or made._freest() is None


def play(made: Router, what: str, step: int, rng: random.Random, there: set[str], live: dict[int, RoutedJob]) -> Any:
    if what == "join":
        there.add(f"n{step}")
        return made.join(f"n{step}", rng.randint(1, 5))
    if what == "add":
        live[step] = RoutedJob(step, rng.randint(0, 3), None)
        return made.add(live[step])
    if what in ("lose", "resize") and there:
        node = rng.choice(sorted(there))
        if what == "resize":
            return made.resize(node, rng.randint(1, 5))
        there.remove(node)
        return made.lose(node)
    if what == "withdraw" and live:
        return made.withdraw(live.pop(rng.choice(sorted(live))))
    held = [job for job in live.values() if job.node]
    if what == "answer" and held:
        job = live.pop(rng.choice(held).number)
        assert made.answered(job.node, job.number, job.attempt) is job
    return None


@pytest.mark.parametrize(
    ("mean_s", "lag_s", "ahead"), [(0.0, 0.15, 2), (10.0, 0.15, 1), (0.3, 0.15, 2), (0.05, 0.15, 4), (0.001, 6.0, 32)]
)
def test_a_node_holds_as_many_jobs_ahead_as_a_worker_does_in_the_lag(mean_s: float, lag_s: float, ahead: int) -> None:
    assert depth(mean_s, lag_s) == ahead <= DEPTH_MAX


def test_a_job_that_failed_on_a_node_goes_to_another_and_waits_for_it_alone() -> None:
    made, (first, second, third) = router(1, 1, jobs=3)
    assert made.assign() == [("n0", first), ("n1", second)]
    assert made.answered("n0", 0, 1) is first
    first.avoids |= {"n0"}
    made.add(first)
    assert made.assign() == [("n0", third)]  # the others do not wait for it
    assert (made.waiting, made.assign()) == (1, [])
    made.answered("n1", 1, 1)
    assert made.assign() == [("n1", first)]
    assert (made.waiting, first.attempt) == (0, 2)


def test_a_job_that_failed_on_every_node_there_is_goes_to_any() -> None:
    made, (first,) = router(1, 1, jobs=1)
    made.assign()
    made.answered("n0", 0, 1)
    first.avoids |= {"n0"}
    made.drain("n1")
    made.add(first)
    assert made.assign() == [("n0", first)]


def test_a_job_that_avoids_a_node_can_be_withdrawn_while_it_waits() -> None:
    made, (first, second) = router(1, 1, jobs=2)
    made.assign()
    made.answered("n0", 0, 1)
    first.avoids |= {"n0"}
    made.add(first)
    assert made.assign() == []
    assert first in made.everything()
    assert made.withdraw(first) == ""
    assert made.everything() == [second]
    assert (made.waiting, made.assign()) == (0, [])
