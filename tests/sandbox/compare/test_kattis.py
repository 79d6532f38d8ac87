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

TOLERANT = "kattis(float_tolerance 1e-6)"


def same(mode: str, output: str | bytes, expected: str | bytes) -> bool:
    texts = [text.encode() if isinstance(text, str) else text for text in (output, expected)]
    return parse_mode(mode)(*texts)


@pytest.mark.parametrize(
    ("output", "expected"), [("yes\n", "YES"), ("  a\r\n\tb\v\f", "a b\n"), ("", "\n"), ("Ä", "Ä")]
)
def test_case_and_white_space_say_nothing_by_default(output: str, expected: str) -> None:
    assert same("kattis", output, expected)
    assert same("kattis()", output, expected)


@pytest.mark.parametrize(
    ("output", "expected"),
    [("1.0", "1.00"), ("1", "1.0"), ("a", "a b"), ("a b", "a"), ("ä", "Ä"), ("ab", "a b"), ("", "a"), ("007", "7")],
)
def test_without_a_tolerance_numbers_are_text_and_other_letters_differ(output: str, expected: str) -> None:
    assert not same("kattis", output, expected)


def test_case_counts_when_asked() -> None:
    assert not same("kattis(case_sensitive)", "yes", "YES")
    assert same("kattis(case_sensitive)", "Yes  No", "Yes\nNo")


@pytest.mark.parametrize(("output", "right"), [("a  b\n", True), ("a b\n", False), ("a  b", False), (" a  b\n", False)])
def test_white_space_counts_when_asked_also_at_the_ends(output: str, right: bool) -> None:
    assert same("kattis(space_change_sensitive)", output, "a  b\n") is right
    assert same("kattis(space_change_sensitive)", output.upper(), "a  b\n") is right


@pytest.mark.parametrize(
    ("output", "expected", "right"),
    [
        ("1.0", "1", True),
        ("1", "1.0000001", True),
        ("1e6", "1000000", True),
        ("1000000.5", "1000000", True),
        ("1.1", "1", False),
        ("one", "1", False),
        ("1", "one", False),
        (".5", "0.5", True),
        ("5.", "5", True),
        ("-0", "0", True),
        ("+3.14000000e-2", "0.0314", True),
        ("0x10", "16", False),
        ("nan", "nan", True),
        ("NaN", "nan", True),
        ("inf", "Infinity", False),
        ("inf", "1e308", False),
        ("nan", "1", False),
        ("1_0", "10", False),
        ("\u0661", "1", False),
        ("", "1", False),
        ("1e999", "2e999", False),
        ("1", "1e999", False),
    ],
)
def test_under_a_tolerance_all_numbers_are_numbers(output: str, expected: str, right: bool) -> None:
    assert same(TOLERANT, output, expected) is right


def test_either_tolerance_is_enough_where_both_are_given() -> None:
    mode = "kattis(float_absolute_tolerance 0.5 float_relative_tolerance 0.01)"
    assert same(mode, "0.4", "0")
    assert same(mode, "1009", "1000")
    assert not same(mode, "1011", "1000")
    assert not same("kattis(float_relative_tolerance 0.01)", "0.001", "0")
    assert not same("kattis(float_absolute_tolerance 0.5)", "1001", "1000")


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
