"""Tests of the difference between what was expected and what came."""

from __future__ import annotations

import pytest

from overlap.view.difference import LINES, difference


@pytest.mark.parametrize(
    ("expected", "got", "lines"),
    [
        ("a\nb\n", "a\nb\n", []),
        ("a\nb\n", "a\nc\n", [(" ", 1, "a"), ("-", 2, "b"), ("+", 2, "c")]),
        ("a\n", "a\nb\n", [(" ", 1, "a"), ("+", 2, "b")]),
        ("1 \n", "1\n", [("-", 1, "1 "), ("+", 1, "1")]),
    ],
)
def test_lines_that_differ_are_shown_with_their_number_in_their_own_text(expected: str, got: str, lines: list) -> None:
    assert difference(expected, got) == lines


def test_equal_lines_far_from_a_difference_are_left_out() -> None:
    same = "".join(f"{n}\n" for n in range(100))
    found = difference(same + "x\n", same + "y\n")
    assert [line.sign for line in found] == ["…", " ", " ", "-", "+"]
    assert found[3].number == 101


def test_a_long_difference_ends_with_the_number_of_lines_left_out() -> None:
    found = difference("a\n" * 100, "b\n" * 100)
    assert len(found) == LINES + 1
    assert found[-1].text == f"{200 - LINES} more lines"
