"""Tests of lines for a terminal, a pipe, and those who want no colours."""

from __future__ import annotations

import io

import pytest

from overlap.view.terminal import Screen, columns


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_pipe_gets_no_colours_and_whole_lines() -> None:
    screen = Screen.of(io.StringIO())
    assert screen == Screen(0, False)
    assert screen.paint("x", "red") == "x"
    assert screen.cut("y" * 500) == "y" * 500


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_a_terminal_without_colours_has_a_width(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "61")
    monkeypatch.setenv("TERM", "xterm")
    assert Screen.of(_Terminal()) == Screen(61, True)
    monkeypatch.setenv(name, value)
    assert Screen.of(_Terminal()) == Screen(61, False)


@pytest.mark.parametrize("text", ["\x1b[2J", "a\rb", "\x9b1m", "\u202etxet", "\udcff", "\x00"])
def test_no_control_character_of_a_cell_reaches_the_terminal(text: str) -> None:
    lines = list(Screen(80, False).table(("name", "why"), [(text, text * 3)]))
    assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize("width", [40, 61, 200])
def test_a_table_fits_the_terminal(width: int) -> None:
    rows = [(n, "problem", "why " * 40) for n in range(3)]
    lines = list(Screen(width, False).table(("step", "problem", "why"), rows, right="step"))
    assert max(map(columns, lines)) <= width
    assert sum("why why" in line for line in lines) == 3


def test_a_last_column_with_lines_of_its_own_keeps_its_name() -> None:
    assert list(Screen(24, False).table(("group", "verdicts", "taught"), [(8, "AC 4, WA 3", "equal rewards")])) == [
        "group  verdicts",
        "8      AC 4, WA 3",
        "    taught: equal rewar…",
    ]


def test_wide_characters_take_two_columns() -> None:
    assert columns("ab漢字") == 6
    assert columns(Screen(20, False).cut("漢字" * 20)) <= 20


def test_columns_that_are_empty_are_left_out() -> None:
    assert list(Screen().table(("a", "b", "c"), [(1, "", 2)])) == ["a  c", "1  2"]
