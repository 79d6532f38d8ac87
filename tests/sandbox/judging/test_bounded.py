"""Sums, products and sets of a program's values: as Python's, until they would cost the judge too much."""

from __future__ import annotations

import math

import pytest

from sandbox.judging import assert_values, python_asserts

PRIME = (1 << 61) - 1  # integers that differ by it have one hash


def holds(test: str, *values: object) -> bool:
    plan = python_asserts.plan_asserts(f"assert {test}")
    assert not plan.weak
    return all(assert_values.holds(check, list(values)) for check in plan.checks)


@pytest.mark.parametrize(
    ("test", "values"),
    [
        ("sum(f()) == 6", [[1, 2, 3]]),
        ("sum(f(), 4) == 10", [[1, 2, 3]]),
        ("sum(f(), []) == [1, 2]", [[[1], [2]]]),
        ("sum(f(), ()) == (1, 2)", [[(1,), (2,)]]),
        ("sum(f()) == 500000500000", [list(range(1_000_001))]),
        ("sum(f()) == 1.5", [[0.5, 1]]),
        ("len(sum(f(), [])) == 250000", [[[0] * 500] * 500]),
        ("set(f()) == {1, 2}", [[1, 2, 2]]),
        ("set() == f()", [set()]),
        ("frozenset(f()) == {1, 2}", [[1, 2, 2]]),
        ("dict(f()) == {1: 2}", [[(1, 2)]]),
        ("dict(f(), b=3) == {'a': 2, 'b': 3}", [{"a": 2}]),
        ("f() % 1000000007 == 437918130", [math.factorial(100)]),
        ("f() // 10 == 10 * f()", [100, 1]),
        ("f() * f() == f()", [3**5000, 3**5000, 3**10000]),
        ("type(f()) == set", [{1}]),
    ],
)
def test_what_is_honest_is_decided_as_python_would(test: str, values: list[object]) -> None:
    assert holds(test, *values)


@pytest.mark.parametrize(
    ("test", "values"),
    [
        ("sum(f()) != 0", [[1 << (1 << 20), *[1] * 100_000]]),
        ("sum(f(), []) != 0", [[[1] * 100_000, *[[]] * 100_000]]),
        ("f() * f() != 0", [1 << (1 << 20)] * 2),
        ("f() % f() != 0", [(1 << (1 << 21)) - 1, (1 << (1 << 20)) - 1]),
        ("f() // f() != 0", [(1 << (1 << 21)) - 1, (1 << (1 << 20)) - 1]),
        ("f() / f() != 0", [(1 << (1 << 21)) - 1, (1 << (1 << 20)) - 1]),
        ("len(set(f())) != 0", [[k * PRIME for k in range(1_000)]]),
        ("dict(f()) != 0", [[(k * PRIME, 1) for k in range(1_000)]]),
    ],
)
def test_what_would_take_the_judge_too_long_does_not_hold(test: str, values: list[object]) -> None:
    assert not holds(test, *values)
