"""The mode `kattis(...)`: the default output validator of contest packages."""

from __future__ import annotations

import pytest

from sandbox.compare.modes import parse_mode
from sandbox.errors import InvalidProblem

PLAIN, CASE, SPACE = "kattis", "kattis(case_sensitive)", "kattis(space_change_sensitive)"
EXACT = "kattis(float_tolerance 0)"
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
    ("kattis(float_relative_tolerance 0.01)", "1e-4000", "0", False),
    # a tolerance of 0 is exact, however long the numbers are
    (EXACT, "1.50", "1.5", True),
    (EXACT, "-0", "0.0", True),
    (EXACT, "1e-4000", "0", False),
    (EXACT, "1e-20000", "0", False),
    (EXACT, "1e-99999999999", "0", False),
    (EXACT, "0.1" + 60 * "0" + "1", "0.1", False),
    (EXACT, "9007199254740993", "9007199254740992", False),
    (EXACT, "1e999999999999999999999", "1", False),
    ("kattis(float_absolute_tolerance 0.5)", "1001", "1000", False),
    ("kattis(float_relative_tolerance 100)", "9e999999999999999999", "-9e999999999999999999", False),
]  # fmt: skip


@pytest.mark.promise("comparison")
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
