"""A problem is sent to a node once, as long as that keeps it."""

from __future__ import annotations

from overlap.cluster.problems import Digests, NodeProblems
from sandbox.core import Case, Problem


def problem(number: int) -> Problem:
    return Problem("p", "stdio", (Case(str(number), "1"),))


def test_problems_that_are_judged_alike_have_one_digest_and_others_another() -> None:
    digests = Digests()
    assert digests.of(problem(1)) == digests.of(problem(1))
    assert digests.of(problem(1)).text != digests.of(problem(2)).text


def test_a_larger_problem_has_a_larger_size() -> None:
    large = Problem("p", "stdio", (Case("x" * 5000, "1"),))
    assert Digests().of(large).size - Digests().of(problem(1)).size == 4999


def test_digests_hold_no_more_problems_than_they_are_to_keep() -> None:
    digests = Digests(kept=2)
    for number in range(10):
        digests.of(problem(number))
    assert len(digests._known) == 2


def test_a_digest_is_new_to_a_shelf_once_until_that_is_cleared() -> None:
    shelf = NodeProblems()
    assert [shelf.take("a"), shelf.take("a"), shelf.take("b")] == [True, False, True]
    shelf.clear()
    assert shelf.take("a")


def test_a_full_shelf_gives_up_what_was_used_longest_ago_but_nothing_that_a_job_needs() -> None:
    shelf = NodeProblems(kept=2)
    for digest in "abcd":
        shelf.take(digest)
    shelf.put_back("b")
    shelf.put_back("d")
    assert shelf.surplus() == ["b"]
    shelf.put_back("a")
    assert shelf.surplus() == ["a"]
    assert shelf.surplus() == []
    assert shelf.take("a")
