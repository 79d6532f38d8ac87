"""The mode `kattis(...)`: the default output validator of contest packages."""

from __future__ import annotations

import math
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandbox.compare.kattis import _number
from sandbox.compare.modes import parse_mode
from sandbox.errors import InvalidProblem

PLAIN, CASE, SPACE = "kattis", "kattis(case_sensitive)", "kattis(space_change_sensitive)"
TOLERANT, BOTH = "kattis(float_tolerance 1e-6)", "kattis(float_absolute_tolerance 0.5 float_relative_tolerance 0.01)"
# mode, output, expected, right?
TABLE = [
    # case and white space say nothing by default
    *((mode, *row, True) for mode in (PLAIN, "kattis()") for row in (
        ("yes\n", "YES"), ("  a\r\n\tb\v\f", "a b\n"), ("", "\n"), ("Ä", "Ä"),
    )),
    # without a tolerance numbers are text, and other letters than ASCII's differ
    *((PLAIN, *row, False) for row in (
        ("1.0", "1.00"), ("1", "1.0"), ("a", "a b"), ("a b", "a"), ("ä", "Ä"), ("ab", "a b"), ("", "a"), ("007", "7"),
    )),
    (CASE, "yes", "YES", False),
    (CASE, "Yes  No", "Yes\nNo", True),
    # white space counts when asked, also at the ends
    *((SPACE, output, "a  b\n", output.lower() == "a  b\n") for output in (
        "a  b\n", "A  B\n", "a b\n", "a  b", " a  b\n", "A B\n",
    )),
    # under a tolerance all numbers are numbers
    (TOLERANT, "1.0", "1", True),
    (TOLERANT, "1", "1.0000001", True),
    (TOLERANT, "1e6", "1000000", True),
    (TOLERANT, "1000000.5", "1000000", True),
    (TOLERANT, "1.1", "1", False),
    (TOLERANT, "one", "1", False),
    (TOLERANT, "1", "one", False),
    (TOLERANT, ".5", "0.5", True),
    (TOLERANT, "5.", "5", True),
    (TOLERANT, "-0", "0", True),
    (TOLERANT, "+3.14000000e-2", "0.0314", True),
    (TOLERANT, "0x10", "16", False),
    (TOLERANT, "nan", "nan", True),
    (TOLERANT, "NaN", "nan", True),
    (TOLERANT, "inf", "Infinity", False),
    (TOLERANT, "inf", "1e308", False),
    (TOLERANT, "nan", "1", False),
    (TOLERANT, "1_0", "10", False),
    (TOLERANT, "\u0661", "1", False),
    (TOLERANT, "", "1", False),
    (TOLERANT, "1e999", "2e999", False),
    (TOLERANT, "1", "1e999", False),
    # either tolerance is enough where both are given
    (BOTH, "0.4", "0", True),
    (BOTH, "1009", "1000", True),
    (BOTH, "1011", "1000", False),
    ("kattis(float_relative_tolerance 0.01)", "0.001", "0", False),
    ("kattis(float_absolute_tolerance 0.5)", "1001", "1000", False),
]  # fmt: skip


@pytest.mark.parametrize(("mode", "output", "expected", "right"), TABLE)
def test_the_table_of_the_default_validator(mode: str, output: str, expected: str, right: bool) -> None:
    assert parse_mode(mode)(output.encode(), expected.encode()) is right


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ("case_sensitiv", "case_sensitiv"),
        ("float_tolerance", "float_tolerance"),
        ("float_tolerance x", "'x'"),
        ("float_tolerance -1", "'-1'"),
        ("float_tolerance nan", "'nan'"),
        ("float_tolerance 1e-6 float_absolute_tolerance 1e-6", "twice"),
    ],
)
def test_an_argument_that_says_nothing_is_refused_by_name(arguments: str, word: str) -> None:
    with pytest.raises(InvalidProblem, match=word):
        parse_mode(f"kattis({arguments})")


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.from_regex(rb"[-+]?(\d{1,40}(\.\d{0,900})?|\.\d{1,900})([eE][-+]?\d{1,3})?", fullmatch=True))
def test_a_number_of_any_length_is_the_nearest_double(token: bytes) -> None:
    nearest = float(Decimal(token.decode("ascii", "replace"))) if token.isascii() else None
    assert _number(token) == (nearest if nearest is not None and math.isfinite(nearest) else None)
